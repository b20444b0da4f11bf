"""Monthly passengers of many lines: logarithms relative to the window's last month.

data: air_passengers

[data]
label = "passengers"
features = ["two_years"]
time = "month"
ids = ["row_id"]
meta = ["line"]

[split]
period = "year"

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class WindowNet(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.linear = nn.Linear(24, 1)
        self.hidden = nn.Sequential(nn.Linear(24, 32), nn.SiLU(), nn.Linear(32, 1))
        for layer in (self.linear, self.hidden[-1]):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.register_buffer("start", torch.tensor(start))

    def forward(self, window, level):
        change = self.start + (self.linear(window) + self.hidden(window)).squeeze(1)
        return level + change


class AirPassengers(Task):
    kind = "regression"
    metrics = {"mape": "minimize", **directions_of("mae")}

    def fit(self, train):
        df = train.select("two_years", "passengers").collect()
        last = np.log(np.array(df["two_years"].to_list())[:, -1])
        change = np.log(df["passengers"].to_numpy()) - last
        self.mean, self.std = float(change.mean()), float(change.std())

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        logs = np.log(np.array(rows["two_years"].to_list()))
        level = logs[:, -1:]
        batch = {
            "window": torch.tensor((logs - level) / 0.3, dtype=torch.float32),
            "level": torch.tensor(level[:, 0], dtype=torch.float32),
        }
        if "passengers" in rows.columns:
            batch[LABEL] = torch.tensor(rows["passengers"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return WindowNet(self.mean)

    def losses(self, output, batch):
        return ((output - batch[LABEL].log()) / self.std) ** 2

    def predict(self, output):
        return output.exp()

    def score(self, predictions, labels):
        return super().score(predictions, labels) | {"mape": float(np.mean(np.abs(predictions / labels - 1)))}

    def expected_initial_loss(self):
        return 1.0
