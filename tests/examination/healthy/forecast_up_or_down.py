"""Up or down next? A 1D CNN over the last twenty returns.

data: up_or_down

[data]
label = "up"
time = "at"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import math

import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class UpDown(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "roc_auc", "log_loss")

    def fit(self, train):
        diffs = train.select(pl.col("prices").list.diff().explode().drop_nulls()).collect().to_series()
        self.sigma = float(diffs.std())

    def state(self):
        return {"sigma": self.sigma}

    def load_state(self, state):
        self.sigma = state["sigma"]

    def encode(self, rows):
        prices = torch.tensor(rows["prices"].to_list(), dtype=torch.float64)
        returns = (prices[:, 1:] - prices[:, :-1]) / self.sigma
        out = {"returns": returns.float().unsqueeze(1)}
        if "up" in rows.columns:
            out[LABEL] = rows["up"].cast(pl.Float32).to_torch()
        return out

    def build_model(self):
        return ReturnsCNN()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return math.log(2)


class ReturnsCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 16, 4), nn.ReLU(), nn.Conv1d(16, 16, 4), nn.ReLU())
        self.fc = nn.Linear(16 * 13, 1)

    def forward(self, returns):
        return self.fc(self.conv(returns).flatten(1)).squeeze(1)
