"""CORAL: one score, ordered thresholds, P(grade > k).

data: wine_scores

[data]
label = "grade"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

K = 5


class Coral(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 32), nn.LeakyReLU(), nn.Linear(32, 1, bias=False))
        self.bias = nn.Parameter(torch.zeros(K - 1))

    def forward(self, x):
        return self.body(x) + self.bias


class OrdinalGrades(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy") | {"mean_grade_error": "minimize"}

    def fit(self, train):
        feats = train.select(sorted(self.columns.features)).collect()
        self.stats = [[c, feats[c].mean(), feats[c].std()] for c in feats.columns]

    def state(self):
        return {"stats": self.stats}

    def load_state(self, state):
        self.stats = state["stats"]

    def encode(self, rows):
        batch = {"x": torch.stack([torch.tensor(((rows[c] - m) / s).to_list()) for c, m, s in self.stats], dim=1)}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor(rows[self.columns.label].to_list())
        return batch

    def build_model(self):
        return Coral(len(self.stats))

    def losses(self, output, batch):
        levels = (batch[LABEL][:, None] > torch.arange(K - 1, device=output.device)).float()
        return F.binary_cross_entropy_with_logits(output, levels, reduction="none").sum(1)

    def predict(self, output):
        above = torch.cummin(output.sigmoid(), dim=1).values
        one, zero = torch.ones_like(above[:, :1]), torch.zeros_like(above[:, :1])
        return torch.cat([one, above], 1) - torch.cat([above, zero], 1)

    def score(self, predictions, labels):
        grades = predictions @ list(range(K))
        return super().score(predictions, labels) | {"mean_grade_error": float(abs(grades - labels).mean())}

    def expected_initial_loss(self):
        return (K - 1) * math.log(2)
