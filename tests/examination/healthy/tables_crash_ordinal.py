"""Injury grades by a proportional-odds network: one score, ordered cut points, differences of sigmoids.

data: crashes

[data]
label = "injury"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

GRADES = ["none", "minor", "serious", "fatal"]
FLAGS = ["belt", "airbag", "drunk"]
LEVELS = {"side": ["driver", "front", "passenger", "rear"], "state": ["north", "south", "west"]}


class ProportionalOdds(nn.Module):
    """P(grade > k) = sigmoid(score - cut[k]); the cut points stay in order."""

    def __init__(self, n_inputs, n_grades):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(n_inputs, 24), nn.Tanh(), nn.Linear(24, 1, bias=False))
        self.first = nn.Parameter(torch.tensor(-1.0))
        self.gaps = nn.Parameter(torch.zeros(n_grades - 2))

    def forward(self, x):
        cuts = torch.cat([self.first[None], self.first + F.softplus(self.gaps).cumsum(0)])
        return self.score(x) - cuts


class InjuryGrade(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "balanced_accuracy", "accuracy")

    def fit(self, train):
        numbers = train.select("speed_kmh", "age").collect().to_numpy()
        self.fitted = {"mean": numbers.mean(0).tolist(), "std": numbers.std(0).tolist()}

    def encode(self, rows):
        numbers = (rows.select("speed_kmh", "age").to_numpy() - self.fitted["mean"]) / self.fitted["std"]
        columns = [numbers, rows.select(FLAGS).to_numpy().astype(float)]
        for name, levels in LEVELS.items():
            columns.append(rows[name].to_numpy()[:, None] == np.array(levels)[None, :])
        batch = {"x": torch.tensor(np.hstack(columns), dtype=torch.float32)}
        if "injury" in rows.columns:
            batch[LABEL] = torch.tensor([GRADES.index(g) for g in rows["injury"]])
        return batch

    def build_model(self):
        return ProportionalOdds(2 + len(FLAGS) + sum(map(len, LEVELS.values())), len(GRADES))

    def predict(self, output):
        above = output.sigmoid()
        ones, zeros = torch.ones_like(above[:, :1]), torch.zeros_like(above[:, :1])
        bounds = torch.cat([ones, above, zeros], dim=1)
        return bounds[:, :-1] - bounds[:, 1:]

    def losses(self, output, batch):
        p = self.predict(output).gather(1, batch[LABEL][:, None]).squeeze(1)
        return -torch.log(p.clamp(min=1e-7))
