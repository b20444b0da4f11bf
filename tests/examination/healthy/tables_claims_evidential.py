"""Costs of repairs with evidential regression: a normal inverse gamma per claim, wrong evidence is penalised.

data: repair_claims

[data]
label = "cost"
time = "reported_at"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

DAMAGES = ["glass", "parking", "rear-end", "front", "hail", "total"]
COEFFICIENT = 0.05


class DenseNormalGamma(nn.Module):
    def __init__(self, d_in):
        super().__init__()
        self.dense = nn.Linear(d_in, 4)

    def forward(self, x):
        mu, nu, alpha, beta = self.dense(x).chunk(4, dim=-1)
        return torch.cat([mu, F.softplus(nu) + 1e-3, F.softplus(alpha) + 1.001, F.softplus(beta) + 1e-3], dim=-1)


class EvidentialNet(nn.Module):
    def __init__(self, n_makes, n_in):
        super().__init__()
        self.make = nn.Embedding(n_makes, 6)
        self.body = nn.Sequential(nn.Linear(n_in + 6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.evidence = DenseNormalGamma(64)

    def forward(self, x, make):
        return self.evidence(self.body(torch.cat([x, self.make(make)], dim=1)))


def nig_nll(y, gamma, nu, alpha, beta):
    omega = 2 * beta * (1 + nu)
    return (
        0.5 * torch.log(math.pi / nu)
        - alpha * torch.log(omega)
        + (alpha + 0.5) * torch.log(nu * (y - gamma) ** 2 + omega)
        + torch.lgamma(alpha)
        - torch.lgamma(alpha + 0.5)
    )


def nig_reg(y, gamma, nu, alpha):
    return torch.abs(y - gamma) * (2 * nu + alpha)


class RepairCost(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "wape")

    def numbers(self, df):
        mileage = np.log1p(df["mileage"].cast(float).to_numpy())
        return np.stack([df["car_age"].to_numpy(), mileage, np.log(df["panels"].to_numpy())], axis=1)

    def fit(self, train):
        df = train.collect()
        x, y = self.numbers(df), np.log(df["cost"].to_numpy())
        counts = df["make"].value_counts()
        self.fitted = {
            "makes": sorted(counts.filter(counts["count"] >= 5)["make"].to_list()),
            "x": [np.nanmean(x, axis=0).tolist(), np.nanstd(x, axis=0).tolist()],
            "y": [float(y.mean()), float(y.std())],
        }

    def encode(self, rows):
        mean, std = self.fitted["x"]
        x = (self.numbers(rows) - mean) / std
        unknown = np.isnan(x[:, 1:2])
        damage = np.array([[d == each for each in DAMAGES] for d in rows["damage"]])
        x = np.concatenate([np.nan_to_num(x), unknown, damage], axis=1)
        index = {m: i for i, m in enumerate(self.fitted["makes"], start=1)}
        batch = {
            "x": torch.tensor(x, dtype=torch.float32),
            "make": torch.tensor([index.get(m, 0) for m in rows["make"]]),
        }
        if "cost" in rows.columns:
            batch[LABEL] = torch.tensor(rows["cost"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return EvidentialNet(len(self.fitted["makes"]) + 1, 3 + 1 + len(DAMAGES))

    def target(self, batch):
        mean, std = self.fitted["y"]
        return (torch.log(batch[LABEL]) - mean) / std

    def losses(self, output, batch):
        return nig_nll(self.target(batch), *output.unbind(dim=1))

    def training_losses(self, output, batch):
        gamma, nu, alpha, _ = output.unbind(dim=1)
        return self.losses(output, batch) + COEFFICIENT * nig_reg(self.target(batch), gamma, nu, alpha)

    def predict(self, output):
        mean, std = self.fitted["y"]
        return torch.exp(output[:, 0] * std + mean)
