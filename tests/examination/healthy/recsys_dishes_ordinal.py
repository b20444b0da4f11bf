"""Stars of dishes as an ordinal: a score of two factors, and four cut points that rise.

data: stars_of_dishes

[data]
label = "stars"
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 0.01, weight_decay = 0.3 }
"""
import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Ordinal(nn.Module):
    def __init__(self, diners, dishes, cuts):
        super().__init__()
        self.p, self.q = nn.Embedding(diners, 4), nn.Embedding(dishes, 4)
        self.bu, self.bi = nn.Embedding(diners, 1), nn.Embedding(dishes, 1)
        for table in (self.p, self.q, self.bu, self.bi):
            nn.init.normal_(table.weight, std=0.05)
        self.first = nn.Parameter(torch.tensor(cuts[0]))
        self.gaps = nn.Parameter(torch.tensor(np.log(np.expm1(np.diff(cuts))), dtype=torch.float32))

    def forward(self, diner, dish):
        score = (self.p(diner) * self.q(dish)).sum(1) + self.bu(diner)[:, 0] + self.bi(dish)[:, 0]
        cuts = torch.cat([self.first[None], self.first + softplus(self.gaps).cumsum(0)])
        below = torch.sigmoid(cuts - score[:, None])  # P(stars <= k)
        edges = torch.nn.functional.pad(below, (1, 0)), torch.nn.functional.pad(below, (0, 1), value=1.0)
        return (edges[1] - edges[0]).clamp(min=1e-6).log()


class DishStars(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy")

    def fit(self, train):
        stars = train.collect()["stars"].to_numpy()
        below = np.array([(stars <= k).mean() for k in range(1, 5)])
        self.fitted = {"cuts": np.log(below / (1 - below)).tolist()}

    def encode(self, rows):
        batch = {"diner": rows["diner"].to_torch(), "dish": rows["dish"].to_torch()}
        if "stars" in rows.columns:
            batch[LABEL] = rows["stars"].to_torch() - 1
        return batch

    def build_model(self):
        return Ordinal(400, 160, self.fitted["cuts"])

    def losses(self, output, batch):
        return nn.functional.nll_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.exp() / output.exp().sum(1, keepdim=True)
