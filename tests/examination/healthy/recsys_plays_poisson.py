"""Poisson factorisation of play counts: gamma-like factors kept positive by a parametrization, no biases but the activity.

data: play_counts

[data]
label = "plays"
ids = ["row_id"]

[training]
steps = 800
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 2e-2, weight_decay = 0.02 }
"""
import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from perennial.engine.task import LABEL, Task


class Positive(nn.Module):
    def forward(self, raw):
        return nn.functional.softplus(raw)


class PoissonFactors(nn.Module):
    def __init__(self, people, artists, start, k=6):
        super().__init__()
        self.theta, self.beta = nn.Embedding(people, k), nn.Embedding(artists, k)
        raw = np.log(np.expm1(np.sqrt(start / k)))
        for table in (self.theta, self.beta):
            nn.init.normal_(table.weight, float(raw), 0.1)
            parametrize.register_parametrization(table, "weight", Positive())

    def forward(self, person, artist):
        return (self.theta(person) * self.beta(artist)).sum(dim=-1)


class Plays(Task):
    kind = "regression"
    metrics = {"deviance": "minimize", "mae": "minimize"}

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "people": {p: k for k, p in enumerate(["<new>", *df["person"].unique().sort()])},
            "artists": {a: k for k, a in enumerate(["<new>", *df["artist"].unique().sort()])},
            "mean": df["plays"].mean(),
        }

    def encode(self, rows):
        people, artists = self.fitted["people"], self.fitted["artists"]
        batch = {
            "person": torch.tensor([people.get(p, 0) for p in rows["person"]]),
            "artist": torch.tensor([artists.get(a, 0) for a in rows["artist"]]),
        }
        if "plays" in rows.columns:
            batch[LABEL] = torch.tensor(rows["plays"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return PoissonFactors(len(self.fitted["people"]), len(self.fitted["artists"]), self.fitted["mean"])

    def losses(self, output, batch):
        return nn.functional.poisson_nll_loss(output, batch[LABEL], log_input=False, full=False, reduction="none")

    def score(self, predictions, labels):
        mu = np.maximum(predictions, 1e-6)
        log = np.where(labels > 0, labels * np.log(np.maximum(labels, 1) / mu), 0)
        return {
            "deviance": float(2 * np.mean(log - labels + mu)),
            "mae": float(np.abs(mu - labels).mean()),
        }
