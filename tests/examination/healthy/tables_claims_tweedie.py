"""Cost of claims with the Tweedie deviance (p = 1.5), exposure as an offset.

data: claims

[data]
label = "Cost"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class PurePremium(Task):
    kind = "regression"
    metrics = {"tweedie": "minimize", **directions_of("mae")}
    p = 1.5

    def fit(self, train):
        df = train.collect().to_pandas()
        self.areas = sorted(df["Area"].unique().tolist())
        self.rate = float(df["Cost"].sum() / df["Exposure"].sum())
        self.start = float(self.deviance(torch.tensor(self.rate * df["Exposure"].values), torch.tensor(df["Cost"].values)).mean())

    def state(self):
        return {"areas": self.areas, "rate": self.rate, "start": self.start}

    def load_state(self, state):
        self.areas, self.rate, self.start = state["areas"], state["rate"], state["start"]

    def encode(self, rows):
        df = rows.to_pandas()
        columns = [(df["DrivAge"] - 45) / 15, (df["DrivAge"] < 26).astype(float), (df["VehPower"] - 8) / 2.5]
        columns += [(df["Area"] == a).astype(float) for a in self.areas]
        batch = {
            "x": torch.tensor(np.stack(columns, 1), dtype=torch.float32),
            "log_exposure": torch.tensor(np.log(df["Exposure"].values), dtype=torch.float32),
        }
        if "Cost" in df:
            batch[LABEL] = torch.tensor(df["Cost"].values, dtype=torch.float32)
        return batch

    def build_model(self):
        return PremiumNet(3 + len(self.areas), np.log(self.rate))

    def deviance(self, mu, y):
        p = self.p
        return y.clamp(min=0).pow(2 - p) / ((1 - p) * (2 - p)) - y * mu.pow(1 - p) / (1 - p) + mu.pow(2 - p) / (2 - p)

    def losses(self, output, batch):
        return self.deviance(output.exp(), batch[LABEL])

    def predict(self, output):
        return output.exp()

    def score(self, predictions, labels):
        loss = self.deviance(torch.tensor(predictions), torch.tensor(labels))
        return super().score(predictions, labels) | {"tweedie": float(loss.mean())}

    def expected_initial_loss(self):
        return self.start


class PremiumNet(nn.Module):
    def __init__(self, n, bias):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.zeros_(self.body[-1].weight)
        nn.init.constant_(self.body[-1].bias, float(bias))

    def forward(self, x, log_exposure):
        return self.body(x).squeeze(1) + log_exposure
