"""RankNet: the difference of two scores of one shared scorer is the logit.

data: duels

[data]
label = "a_won"
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

FIELDS = ("stars", "price", "rating", "pool", "noise")


class RankNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(len(FIELDS), 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1, bias=False))

    def forward(self, a, b):
        return (self.score(a) - self.score(b)).squeeze(-1)


class HotelDuels(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        self.std = [float(train.select(f"a_{f}").collect().to_series().std()) for f in FIELDS]

    def state(self):
        return {"std": self.std}

    def load_state(self, state):
        self.std = state["std"]

    def encode(self, rows):
        def side(s):
            return torch.stack([torch.tensor(rows[f"{s}_{f}"].to_numpy(), dtype=torch.float32) / d for f, d in zip(FIELDS, self.std)], 1)

        out = {"a": side("a"), "b": side("b")}
        if "a_won" in rows.columns:
            out[LABEL] = torch.tensor(rows["a_won"].to_numpy(), dtype=torch.float32)
        return out

    def build_model(self):
        return RankNet()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)

    def expected_initial_loss(self):
        return math.log(2)
