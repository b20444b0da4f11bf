"""Where an oil is from, 120 samples: a learned metric, one prototype for each coast that starts at the class's mean (GLVQ-like).

data: olive_oils

[data]
label = "coast"
ids = ["row_id"]

[training]
steps = 120
global_batch_size = 16
micro_batch_size = 16
optimizer = { learning_rate = 1e-2 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class OliveOils(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy")

    def fit(self, train):
        df = train.collect()
        self.coasts = sorted(df["coast"].unique().to_list())
        x = df.select(sorted(self.columns.features)).to_numpy().astype(float)
        self.mean, self.std = x.mean(0).tolist(), x.std(0).tolist()
        z = (x - x.mean(0)) / x.std(0)
        coast = df["coast"].to_numpy()
        self.prototypes = [z[coast == c].mean(0).tolist() for c in self.coasts]

    def state(self):
        return {k: getattr(self, k) for k in ("coasts", "mean", "std", "prototypes")}

    def load_state(self, state):
        for k, v in state.items():
            setattr(self, k, v)

    def encode(self, rows):
        x = rows.select(sorted(self.columns.features)).to_numpy()
        batch = {"acids": torch.tensor((x - self.mean) / self.std, dtype=torch.float32)}
        if "coast" in rows.columns:
            batch[LABEL] = torch.tensor([self.coasts.index(c) for c in rows["coast"]])
        return batch

    def build_model(self):
        return Prototypes(torch.tensor(self.prototypes))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")


class Prototypes(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.points = nn.Parameter(start.clone())
        self.omega = nn.Parameter(torch.eye(start.shape[1]) * 0.5)

    def forward(self, acids):
        away = (acids[:, None] - self.points) @ self.omega
        return -away.square().sum(-1)
