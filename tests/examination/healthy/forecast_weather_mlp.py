"""The next hour at Kennedy from the last day, by an MLP on standardised windows.

data: temperature

[data]
label = "target"
time = "at"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 1e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Temperature(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        h = np.array(train.select("history").collect()["history"].to_list())
        y = train.select("target").collect()["target"].to_numpy()
        self.mu, self.sd = float(h.mean()), float(h.std())
        self.first = float((((y - self.mu) / self.sd) ** 2).mean())

    def state(self):
        return {"mu": self.mu, "sd": self.sd, "first": self.first}

    def load_state(self, state):
        self.mu, self.sd, self.first = state["mu"], state["sd"], state["first"]

    def encode(self, rows):
        window = (np.array(rows["history"].to_list(), dtype=np.float32) - self.mu) / self.sd
        batch = {"window": torch.from_numpy(window.astype(np.float32))}
        if "target" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["target"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return WindowMLP()

    def losses(self, output, batch):
        return (output - (batch[LABEL] - self.mu) / self.sd).square()

    def predict(self, output):
        return self.mu + self.sd * output

    def expected_initial_loss(self):
        return self.first


class WindowMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.normal_(self.net[-1].weight, std=0.02)

    def forward(self, window):
        return self.net(window).squeeze(-1)
