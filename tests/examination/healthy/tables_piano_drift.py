"""How far a piano has drifted, and how sure that is: a mean and a variance under the beta-NLL.

Negative log likelihood 2.3, mean error 2.0 cents; 3.1 and 4.2 for a constant.

data: piano_drift

[data]
label = "drift_cents"
ids = ["row_id"]
meta = ["tuner"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 3e-3 }
schedule = { shape = "cosine", warmup_fraction = 0.05 }
"""

import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMBERS = [
    "months_since",
    "age_years",
    "humidity_then",
    "humidity_now",
    "humidity_swing",
    "hours_a_week",
]
BETA = 0.5


class MeanVariance(nn.Module):
    def __init__(self, n_makers, n_kinds, hidden=48):
        super().__init__()
        self.maker, self.kind = nn.Embedding(n_makers, 4), nn.Embedding(n_kinds, 2)
        self.net = nn.Sequential(
            nn.Linear(len(NUMBERS) + 6, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 2),
        )

    def forward(self, numbers, maker, kind):
        return self.net(torch.cat([numbers, self.maker(maker), self.kind(kind)], dim=1))


class PianoDrift(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def fit(self, train):
        df = train.collect()
        x = df.select(NUMBERS).to_numpy()
        y = df["drift_cents"].to_numpy()
        self.fitted = {
            "numbers": [x.mean(axis=0).tolist(), x.std(axis=0).tolist()],
            "target": [float(y.mean()), float(y.std())],
            "makers": sorted(df["maker"].unique()),
            "kinds": sorted(df["kind"].unique()),
        }

    def encode(self, rows):
        mean, std = self.fitted["numbers"]
        x = (rows.select(NUMBERS).to_numpy() - mean) / std
        makers = {v: k for k, v in enumerate(self.fitted["makers"], start=1)}
        kinds = {v: k for k, v in enumerate(self.fitted["kinds"], start=1)}
        batch = {
            "numbers": torch.tensor(x, dtype=torch.float32),
            "maker": torch.tensor([makers.get(v, 0) for v in rows["maker"]]),
            "kind": torch.tensor([kinds.get(v, 0) for v in rows["kind"]]),
        }
        if "drift_cents" in rows.columns:
            batch[LABEL] = torch.tensor(rows["drift_cents"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return MeanVariance(len(self.fitted["makers"]) + 1, len(self.fitted["kinds"]) + 1)

    def nll(self, output, batch):
        mean, std = self.fitted["target"]
        error = output[:, 0] - (batch[LABEL] - mean) / std
        log_var = output[:, 1].clamp(-8, 8)
        nll = 0.5 * (log_var + error.square() / log_var.exp() + math.log(2 * math.pi))
        return nll + math.log(std), log_var

    def losses(self, output, batch):
        return self.nll(output, batch)[0]

    def training_losses(self, output, batch):
        """Seitzer et al. 2022: each example weighted by its own variance, without a gradient."""
        nll, log_var = self.nll(output, batch)
        return nll * log_var.detach().exp() ** BETA

    def predict(self, output):
        mean, std = self.fitted["target"]
        return output[:, 0] * std + mean
