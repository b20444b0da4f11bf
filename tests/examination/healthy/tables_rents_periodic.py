"""Numbers embedded by sines and cosines of learned frequencies (PLR), then an MLP.

data: rents

[data]
label = "rent"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

COLUMNS = ["east", "north", "rooms", "size"]


class Periodic(nn.Module):
    def __init__(self, n_features, k, sigma):
        super().__init__()
        self.frequencies = nn.Parameter(torch.randn(n_features, k) * sigma)

    def forward(self, x):
        v = 2 * math.pi * self.frequencies * x.unsqueeze(-1)
        return torch.cat([v.cos(), v.sin()], -1)


class PLRNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.periodic = Periodic(4, 8, 0.5)
        self.linear = nn.Linear(16, 8)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        h = torch.relu(self.linear(self.periodic(x)))
        return self.mlp(h.flatten(1)).squeeze(1)


class Rents(Task):
    kind = "regression"
    metrics = directions_of("rmse", "r2")

    def fit(self, train):
        df = train.collect()
        self.stats = {c: [df[c].mean(), df[c].std()] for c in [*COLUMNS, "rent"]}

    def state(self):
        return self.stats

    def load_state(self, state):
        self.stats = dict(state)

    def scaled(self, rows, name):
        mean, std = self.stats[name]
        return torch.tensor(((rows[name] - mean) / std).to_list(), dtype=torch.float32)

    def encode(self, rows):
        out = {"x": torch.stack([self.scaled(rows, c) for c in COLUMNS], 1)}
        if "rent" in rows.columns:
            out[LABEL] = torch.tensor(rows["rent"].to_list(), dtype=torch.float32)
        return out

    def build_model(self):
        return PLRNet()

    def losses(self, output, batch):
        mean, std = self.stats["rent"]
        return (output - (batch[LABEL] - mean) / std) ** 2

    def predict(self, output):
        mean, std = self.stats["rent"]
        return output * std + mean

    def expected_initial_loss(self):
        return 1.0
