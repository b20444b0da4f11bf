"""Listwise softmax over six candidates of a query, one scorer for all.

data: searches

[data]
label = "clicked"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Search(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "top_3_accuracy")
    fields = ["match", "price", "stars", "noise"]

    def fit(self, train):
        x = self.stack(train.collect())
        self.mean, self.std = x.mean((0, 1)).tolist(), x.std((0, 1)).tolist()

    def stack(self, df):
        return np.stack([np.array(df[f].to_list()) for f in self.fields], axis=2)

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        x = (self.stack(rows) - self.mean) / self.std
        batch = {"candidates": torch.tensor(x, dtype=torch.float32)}
        if "clicked" in rows.columns:
            batch[LABEL] = torch.tensor(rows["clicked"].to_list())
        return batch

    def build_model(self):
        return Scorer()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(dim=1)

    def expected_initial_loss(self):
        return math.log(6)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, candidates):
        return self.net(candidates).squeeze(-1)
