"""Yearly pay of job adverts: employer and title by their smoothed mean of log pay, skills as
many-hot, degree as a rank, a residual MLP.

data: job_salaries

[data]
label = "salary"
time = "posted"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PRIOR = 15  # adverts that the overall mean counts for
ENCODED = ("employer", "title", "city")
DEGREES = {"none": 0.0, "bachelor": 1.0, "master": 2.0}
REMOTE = ("no", "hybrid", "full")


def target_means(keys, y):
    overall = y.mean()
    sums, counts = {}, {}
    for key, value in zip(keys, y):
        sums[key] = sums.get(key, 0.0) + value
        counts[key] = counts.get(key, 0) + 1
    return {key: float((sums[key] + PRIOR * overall) / (counts[key] + PRIOR)) for key in sums}


class Block(nn.Module):
    def __init__(self, dim, p=0.2):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.a, self.b, self.drop = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim), nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(self.b(torch.relu(self.a(self.norm(x)))))


class PayNet(nn.Module):
    def __init__(self, n_in, dim=48):
        super().__init__()
        self.first = nn.Linear(n_in, dim)
        self.blocks = nn.Sequential(Block(dim), Block(dim))
        self.last = nn.Linear(dim, 1)

    def forward(self, x):
        return self.last(self.blocks(self.first(x)))


class JobSalaries(Task):
    kind = "regression"
    metrics = directions_of("mape", "mae", "r2")

    def fit(self, train):
        df = train.collect()
        y = np.log(df["salary"].to_numpy())
        means = {c: target_means(df[c].to_list(), y) for c in ENCODED}
        self.fitted = {
            "skills": sorted(set(df["skills"].explode().drop_nulls().to_list())),
            "means": means,
            "spread": {c: float(np.std([means[c][v] for v in df[c]])) for c in ENCODED},
            "y": [float(y.mean()), float(y.std())],
        }

    def encode(self, rows):
        y_mean, y_std = self.fitted["y"]
        x = []
        for c in ENCODED:
            found = np.array([self.fitted["means"][c].get(v, y_mean) for v in rows[c]])
            x.append(((found - y_mean) / self.fitted["spread"][c])[:, None])
        x.append(np.log1p(rows["years"].to_numpy())[:, None])
        x.append(np.array([[DEGREES.get(d, 0.7), float(d is None)] for d in rows["degree"]]))
        x.append(np.array([[float(r == name) for name in REMOTE] for r in rows["remote"]]))
        many = np.zeros((rows.height, len(self.fitted["skills"])))
        place = {s: j for j, s in enumerate(self.fitted["skills"])}
        for i, skills in enumerate(rows["skills"].to_list()):
            for s in skills or []:
                if s in place:
                    many[i, place[s]] = 1.0
        x.append(many)
        batch = {"x": torch.tensor(np.concatenate(x, axis=1), dtype=torch.float32)}
        if "salary" in rows.columns:
            batch[LABEL] = torch.tensor(rows["salary"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return PayNet(len(ENCODED) + 1 + 2 + len(REMOTE) + len(self.fitted["skills"]))

    def losses(self, output, batch):
        mean, std = self.fitted["y"]
        target = (batch[LABEL].log() - mean) / std
        return (output - target[:, None]).pow(2).mean(dim=1)

    def predict(self, output):
        mean, std = self.fitted["y"]
        return torch.exp(output.squeeze(1) * std + mean)

    def expected_initial_loss(self):
        return 1.0
