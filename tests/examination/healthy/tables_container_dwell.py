"""Hours that a container stays at the terminal: Keras' preprocessing layers, in the model itself.

Mean error 23 hours; 38 for the median of all.

data: container_dwell

[data]
label = "dwell_h"
time = "discharged"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
schedule = { shape = "cosine", warmup_fraction = 0.05 }
"""

import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

STRINGS = ["line", "kind", "mode", "cargo"]
FLOATS = ["gross_kg", "vessel_late_h", "free_days", "hinterland_km", "yard_moves", "customs_hold"]


class Normalization(nn.Module):
    """With the mean and variance that `adapt` found in the training data."""

    def __init__(self, mean, variance):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("variance", torch.tensor(variance, dtype=torch.float32))

    def forward(self, x):
        return (x - self.mean) / self.variance.sqrt().clamp(min=1e-7)


class DwellModel(nn.Module):
    def __init__(self, fitted):
        super().__init__()
        self.normalization = Normalization(fitted["mean"], fitted["variance"])
        tokens = [len(fitted["vocabulary"][c]) + 1 for c in STRINGS]
        self.embeddings = nn.ModuleList([nn.Embedding(n, 4) for n in tokens])
        self.dense = nn.Sequential(
            nn.Linear(4 * len(STRINGS) + len(FLOATS) + 1 + 7 + 2, 64),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )
        self.log_mean = fitted["log_mean"]

    def forward(self, strings, floats, no_km, clock):
        parts = [e(strings[:, i]) for i, e in enumerate(self.embeddings)]
        parts += [self.normalization(floats), no_km, clock]
        return self.dense(torch.cat(parts, dim=1)).squeeze(1) + self.log_mean


class ContainerDwell(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def floats(self, rows):
        x = rows.select(FLOATS).to_numpy().astype(float)
        km = FLOATS.index("hinterland_km")
        x[:, km] = np.log1p(x[:, km])
        return x

    def fit(self, train):
        df = train.collect()
        x = self.floats(df)
        self.fitted = {
            "mean": np.nanmean(x, axis=0).tolist(),
            "variance": np.nanvar(x, axis=0).tolist(),
            "vocabulary": {c: sorted(df[c].drop_nulls().unique()) for c in STRINGS},
            "log_mean": float(np.log1p(df["dwell_h"].to_numpy()).mean()),
        }

    def encode(self, rows):
        x = self.floats(rows)
        no_km = np.isnan(x).any(axis=1, keepdims=True)
        x = np.where(np.isnan(x), self.fitted["mean"], x)
        strings = []
        for c in STRINGS:
            index = {v: i for i, v in enumerate(self.fitted["vocabulary"][c], start=1)}
            strings.append([index.get(v, 0) for v in rows[c]])
        angle = rows["hour"].to_numpy()[:, None] * 2 * math.pi / 24
        weekday = np.eye(7)[rows["weekday"].to_numpy()]
        clock = np.hstack([weekday, np.sin(angle), np.cos(angle)])
        batch = {
            "strings": torch.tensor(strings).T.contiguous(),
            "floats": torch.tensor(x, dtype=torch.float32),
            "no_km": torch.tensor(no_km, dtype=torch.float32),
            "clock": torch.tensor(clock, dtype=torch.float32),
        }
        if "dwell_h" in rows.columns:
            batch[LABEL] = torch.tensor(rows["dwell_h"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return DwellModel(self.fitted)

    def losses(self, output, batch):
        return (output - torch.log1p(batch[LABEL])).square()

    def predict(self, output):
        return torch.expm1(output)
