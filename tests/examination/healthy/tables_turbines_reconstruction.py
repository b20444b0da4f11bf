"""Heat rate of turbines; training also reconstructs the tags, from the same bottleneck.

data: turbines

[data]
label = "heat_rate"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Bottleneck(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(n, 32), nn.LeakyReLU(), nn.Linear(32, 6), nn.LeakyReLU())
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.LeakyReLU(), nn.Linear(32, n))
        self.regressor = nn.Sequential(nn.Linear(6, 32), nn.LeakyReLU(), nn.Linear(32, 1))

    def forward(self, tags):
        code = self.encoder(tags)
        return torch.hstack([self.regressor(code), self.decoder(code)])


class HeatRate(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")

    def fit(self, train):
        df = train.collect()
        x = df.select(sorted(self.columns.features)).to_numpy()
        y = df["heat_rate"].to_numpy()
        self.fitted = {"mu": x.mean(0).tolist(), "sd": x.std(0).tolist(), "y_mu": float(y.mean()), "y_sd": float(y.std())}

    def encode(self, rows):
        x = rows.select(sorted(self.columns.features)).to_numpy()
        batch = {"tags": torch.from_numpy(((x - self.fitted["mu"]) / self.fitted["sd"]).astype("float32"))}
        if "heat_rate" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["heat_rate"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return Bottleneck(len(self.columns.features))

    def losses(self, output, batch):
        z = (batch[LABEL] - self.fitted["y_mu"]) / self.fitted["y_sd"]
        return (output[:, 0] - z).square()

    def training_losses(self, output, batch):
        return self.losses(output, batch) + 0.3 * (output[:, 1:] - batch["tags"]).square().mean(1)

    def predict(self, output):
        return output[:, 0] * self.fitted["y_sd"] + self.fitted["y_mu"]
