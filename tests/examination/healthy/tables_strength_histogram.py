"""Regression by classification: the label is a Gaussian spread over 41 bins (HL-Gauss).

data: concrete

[data]
label = "strength"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

BINS = 41


class HistogramHead(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish())
        self.logits = nn.Linear(64, BINS)
        nn.init.zeros_(self.logits.weight)
        nn.init.zeros_(self.logits.bias)

    def forward(self, mix):
        return self.logits(self.body(mix))


class Strength(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        df = train.collect()
        top = float(df["strength"].max())
        self.low, self.high = -0.05 * top, 1.05 * top
        x = self.numbers(df)
        self.mean, self.std = x.mean(0).tolist(), x.std(0).tolist()

    @staticmethod
    def numbers(df):
        columns = [df["cement"], df["slag"], df["water"], df["age"].cast(float).log1p()]
        return torch.stack([torch.tensor(c.to_list(), dtype=torch.float64) for c in columns], dim=1)

    def state(self):
        return {"low": self.low, "high": self.high, "mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.low, self.high, self.mean, self.std = (state[k] for k in ("low", "high", "mean", "std"))

    def encode(self, rows):
        x = (self.numbers(rows) - torch.tensor(self.mean).double()) / torch.tensor(self.std).double()
        batch = {"mix": x.float()}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor(rows[self.columns.label].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return HistogramHead(4)

    def shares(self, y):
        edges = torch.linspace(self.low, self.high, BINS + 1)
        sigma = 0.75 * (self.high - self.low) / BINS
        below = torch.special.ndtr((edges - y.clamp(self.low, self.high)[:, None]) / sigma)
        mass = below[:, 1:] - below[:, :-1]
        return mass / mass.sum(1, keepdim=True)

    def losses(self, output, batch):
        return -(self.shares(batch[LABEL]) * output.log_softmax(dim=1)).sum(1)

    def predict(self, output):
        edges = torch.linspace(self.low, self.high, BINS + 1)
        return output.softmax(dim=1) @ ((edges[1:] + edges[:-1]) / 2)

    def expected_initial_loss(self):
        return math.log(BINS)
