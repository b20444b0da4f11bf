"""Strength of bee colonies in spring, in Keras' manner: lookups, normalisation, ordered thresholds.

data: hives_after_winter

[data]
label = "spring"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 3e-3 }
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

STRENGTHS = ["dead", "weak", "fair", "strong", "very strong"]
NUMERIC = ["mites_per_day", "frames", "stores_kg", "queen_age"]
STRINGS = ["yard", "race", "treated"]


def logarithm(df):
    """Columns of numbers, mites by their logarithm; NaN where one is missing."""
    x = df.select(NUMERIC).to_numpy().astype(np.float64)
    x[:, 0] = np.log1p(x[:, 0])
    return x


class HiveModel(nn.Module):
    """One score for a colony, and a threshold between each two strengths."""

    def __init__(self, vocabulary_sizes, numbers):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, 4) for n in vocabulary_sizes)
        self.dense1 = nn.Linear(numbers + 4 * len(vocabulary_sizes), 48)
        self.dense2 = nn.Linear(48, 24)
        self.score = nn.Linear(24, 1, bias=False)
        self.first = nn.Parameter(torch.tensor(-1.5))
        self.gaps = nn.Parameter(torch.zeros(len(STRENGTHS) - 2))

    def forward(self, numbers, strings):
        embedded = [table(strings[:, k]) for k, table in enumerate(self.embeddings)]
        h = F.relu(self.dense1(torch.cat([numbers, *embedded], dim=1)))
        score = self.score(F.relu(self.dense2(h)))
        steps = torch.cat([self.first[None], F.softplus(self.gaps + 0.5)])
        at_most = torch.sigmoid(steps.cumsum(0) - score)  # P(strength <= k)
        zero, one = torch.zeros_like(score), torch.ones_like(score)
        return torch.cat([at_most, one], dim=1) - torch.cat([zero, at_most], dim=1)


class HiveStrength(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy") | {"mean_distance": "minimize"}

    def fit(self, train):
        df = train.collect()
        x = logarithm(df)
        self.fitted = {
            "mean": np.nanmean(x, axis=0).tolist(),
            "variance": np.nanvar(x, axis=0).tolist(),
            "vocabulary": [sorted(df[name].unique()) for name in STRINGS],
        }

    def encode(self, rows):
        x = (logarithm(rows) - self.fitted["mean"]) / np.sqrt(self.fitted["variance"])
        missing = np.isnan(x)[:, [0, 2]]
        numbers = np.concatenate([np.nan_to_num(x), missing], axis=1)
        lookup = [
            [known.index(v) + 1 if v in known else 0 for v in rows[name]]
            for name, known in zip(STRINGS, self.fitted["vocabulary"])
        ]
        batch = {
            "numbers": torch.tensor(numbers, dtype=torch.float32),
            "strings": torch.tensor(lookup).T.contiguous(),
        }
        if "spring" in rows.columns:
            batch[LABEL] = torch.tensor([STRENGTHS.index(v) for v in rows["spring"]])
        return batch

    def build_model(self):
        return HiveModel([len(v) + 1 for v in self.fitted["vocabulary"]], len(NUMERIC) + 2)

    def losses(self, output, batch):
        return F.nll_loss(output.clamp(min=1e-6).log(), batch[LABEL], reduction="none")

    def predict(self, output):
        return output

    def score(self, predictions, labels):
        away = np.abs(predictions @ np.arange(len(STRENGTHS)) - labels)
        return super().score(predictions, labels) | {"mean_distance": float(away.mean())}
