"""A monotone network for a credit score: weights through softplus, signs by what the regulator expects.

data: loans

[data]
label = "delinquent"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 1e-2, weight_decay = 0.0 }
"""
import math

import polars as pl
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

RISK = {"utilization": 1.0, "debt_ratio": 1.0, "times_late": 1.0, "monthly_income": -1.0}


class PositiveLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(n_out, n_in) * 0.3 - 1.5)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return F.linear(x, F.softplus(self.raw), self.bias)


class MonotoneScore(nn.Module):
    def __init__(self, prior):
        super().__init__()
        self.register_buffer("sign", torch.tensor(list(RISK.values())))
        self.up = PositiveLinear(4, 16)
        self.top = PositiveLinear(16, 1)
        self.free = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        nn.init.constant_(self.top.bias, math.log(prior / (1 - prior)))

    def forward(self, monotone, age):
        return (self.top(torch.tanh(self.up(monotone * self.sign))) + self.free(age)).squeeze(1)


class CreditScore(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc")

    def prepared(self, rows):
        return rows.lazy().with_columns(pl.col("monthly_income").log1p(), pl.col("age").cast(pl.Float64))

    def fit(self, train):
        x = self.prepared(train).select(*RISK, "age")
        self.fitted = {
            "mean": x.mean().collect().row(0, named=True),
            "std": x.std().collect().row(0, named=True),
            "rate": float(train.select(pl.col("delinquent").mean()).collect().item()),
        }

    def encode(self, rows):
        mean, std = self.fitted["mean"], self.fitted["std"]
        z = self.prepared(rows).select((pl.col(c) - mean[c]) / std[c] for c in (*RISK, "age")).collect()
        batch = {
            "monotone": torch.tensor(z.select(*RISK).to_numpy(), dtype=torch.float32),
            "age": torch.tensor(z.select("age").to_numpy(), dtype=torch.float32),
        }
        if "delinquent" in rows.columns:
            batch[LABEL] = torch.tensor(rows["delinquent"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return MonotoneScore(self.fitted["rate"])

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)
