"""Focal loss (RetinaNet) while training, with the prior as the first bias.

data: card_payments

[data]
label = "fraud"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import math

import polars as pl
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMERIC = ["amount", "km_from_home", "tries"]


class FocalFraud(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")
    gamma, alpha = 2.0, 0.5

    def fit(self, train):
        stats = train.select([pl.col(c).log1p().mean().alias(f"{c}_m") for c in NUMERIC] + [pl.col(c).log1p().std().alias(f"{c}_s") for c in NUMERIC]).collect()
        self.stats = {k: float(v) for k, v in stats.row(0, named=True).items()}
        self.merchants = train.select(pl.col("merchant").unique().sort()).collect()["merchant"].to_list()
        self.pi = float(train.select(pl.col("fraud").mean()).collect().item())

    def state(self):
        return {"stats": self.stats, "merchants": self.merchants, "pi": self.pi}

    def load_state(self, state):
        self.stats, self.merchants, self.pi = state["stats"], state["merchants"], state["pi"]

    def encode(self, rows):
        numeric = rows.select(((pl.col(c).log1p() - self.stats[f"{c}_m"]) / self.stats[f"{c}_s"]).cast(pl.Float32) for c in NUMERIC)
        code = {m: i for i, m in enumerate(self.merchants)}
        out = {
            "numeric": numeric.to_torch(),
            "merchant": torch.tensor([code.get(m, len(code)) for m in rows["merchant"]]),
            "hour": torch.tensor(rows["hour"].to_list()),
        }
        if "fraud" in rows.columns:
            out[LABEL] = rows["fraud"].cast(pl.Float32).to_torch()
        return out

    def build_model(self):
        return Net(len(self.merchants) + 1, self.pi)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        ce = self.losses(output, batch)
        p_t = torch.exp(-ce)
        return (1 - p_t) ** self.gamma * ce + 0.1 * ce

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return -(self.pi * math.log(self.pi) + (1 - self.pi) * math.log(1 - self.pi))


class Net(nn.Module):
    def __init__(self, n_merchants, pi):
        super().__init__()
        self.merchant = nn.Embedding(n_merchants, 4)
        self.hour = nn.Embedding(24, 4)
        self.fc1 = nn.Linear(11, 48)
        self.fc2 = nn.Linear(48, 1)
        self.fc2.weight.data.mul_(0.1)
        self.fc2.bias.data.fill_(-math.log((1 - pi) / pi))

    def forward(self, numeric, merchant, hour):
        h = F.relu(self.fc1(torch.cat([numeric, self.merchant(merchant), self.hour(hour)], -1)))
        return self.fc2(h).squeeze(-1)
