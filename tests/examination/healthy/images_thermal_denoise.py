"""A cheap thermal camera's pictures made as a good one's: a small U-Net that learns the residual.

data: thermal_frames

[data]
label = "good"
features = ["cheap"]
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3, weight_decay = 0.01 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

SIDE = 20


class DenoisingUNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge = nn.Conv2d(2 * width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 1, 1)
        self.stripes = nn.Parameter(torch.zeros(1, 1, 1, SIDE))

    def forward(self, noisy):
        x = noisy - self.stripes
        first = F.relu(self.first(x))
        h = F.relu(self.middle(F.relu(self.down(first))))
        h = F.relu(self.merge(torch.cat([self.up(h), first], dim=1)))
        return x - self.last(h)


class ThermalDenoise(Task):
    kind = "statistic"
    metrics = {"rmse_kelvin": "minimize"}
    serves_predictions = True

    def fit(self, train):
        pixels = np.array(train.collect()["cheap"].to_list())
        self.fitted = {"mean": float(pixels.mean()), "std": float(pixels.std())}

    def scaled(self, column):
        pixels = torch.tensor(column.to_list(), dtype=torch.float32).view(-1, 1, SIDE, SIDE)
        return (pixels - self.fitted["mean"]) / self.fitted["std"]

    def encode(self, rows):
        batch = {"noisy": self.scaled(rows["cheap"])}
        if "good" in rows.columns:
            batch[LABEL] = self.scaled(rows["good"])
        return batch

    def augment(self, batch, generator):
        """Turn half of the pictures upside down; stripes stay where they are."""
        turned = torch.rand(len(batch["noisy"]), 1, 1, 1, generator=generator) < 0.5
        noisy = torch.where(turned, batch["noisy"].flip(2), batch["noisy"])
        good = torch.where(turned, batch[LABEL].flip(2), batch[LABEL])
        return {**batch, "noisy": noisy, LABEL: good}

    def build_model(self):
        return DenoisingUNet()

    def losses(self, output, batch):
        return F.mse_loss(output, batch[LABEL], reduction="none").mean(dim=(1, 2, 3))

    def predict(self, output):
        return (output * self.fitted["std"] + self.fitted["mean"]).flatten(1)

    def statistic(self, output, batch):
        """The squared error of each picture, in square kelvin."""
        true = batch[LABEL] * self.fitted["std"] + self.fitted["mean"]
        return (self.predict(output) - true.flatten(1)).square().mean(1).double()

    def score(self, predictions, labels):
        return {"rmse_kelvin": float(np.sqrt(np.average(predictions.ravel(), weights=labels)))}
