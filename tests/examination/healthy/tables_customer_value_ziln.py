"""Customer lifetime value: zero-inflated lognormal loss over three logits, ranked by a normalised Gini.

data: first_orders

[data]
label = "spent_after"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CHANNELS = ("search", "social", "friend", "newsletter")
SHELVES = ("coffee", "tea", "machines", "gifts")


def ziln_loss(logits, value):
    positive = (value > 0).float()
    classification = F.binary_cross_entropy_with_logits(logits[:, 0], positive, reduction="none")
    loc, scale = logits[:, 1], F.softplus(logits[:, 2]).clamp(min=math.sqrt(1e-6))
    log_value = torch.log(torch.where(value > 0, value, torch.ones_like(value)))
    regression = -torch.distributions.Normal(loc, scale).log_prob(log_value) + log_value
    return classification + positive * regression


def gini(truth, by):
    ordered = truth[np.argsort(-by, kind="stable")]
    lorenz = np.cumsum(ordered) / ordered.sum()
    return float(lorenz.mean() - 0.5)


class ValueDNN(nn.Module):
    def __init__(self, numeric, start):
        super().__init__()
        self.channel, self.shelf = nn.Embedding(len(CHANNELS), 3), nn.Embedding(len(SHELVES), 3)
        self.tower = nn.Sequential(nn.Linear(6 + numeric, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.logits = nn.Linear(24, 3)
        with torch.no_grad():
            self.logits.weight.mul_(0.1)
            self.logits.bias.copy_(torch.tensor(start))

    def forward(self, channel, shelf, numeric):
        h = torch.cat([self.channel(channel), self.shelf(shelf), numeric], dim=1)
        return self.logits(self.tower(h))


class LifetimeValue(Task):
    kind = "regression"
    metrics = {"gini": "maximize", **directions_of("rmse", "mae")}

    def fit(self, train):
        df = train.collect()
        self.numeric = sorted(set(self.columns.features) - {"channel", "shelf"})
        x = np.log1p(df.select(self.numeric).to_numpy())
        spent = df["spent_after"].to_numpy()
        log_spent, share = np.log(spent[spent > 0]), float((spent > 0).mean())
        self.mean, self.std = x.mean(0).tolist(), (x.std(0) + 1e-6).tolist()
        spread = float(log_spent.std())
        self.start = [math.log(share / (1 - share)), float(log_spent.mean()), math.log(math.expm1(spread))]

    def state(self):
        return {"numeric": self.numeric, "mean": self.mean, "std": self.std, "start": self.start}

    def load_state(self, state):
        for name, value in state.items():
            setattr(self, name, value)

    def encode(self, rows):
        x = (np.log1p(rows.select(self.numeric).to_numpy()) - self.mean) / self.std
        batch = {
            "channel": torch.tensor([CHANNELS.index(c) for c in rows["channel"]]),
            "shelf": torch.tensor([SHELVES.index(s) for s in rows["shelf"]]),
            "numeric": torch.tensor(x, dtype=torch.float32),
        }
        if "spent_after" in rows.columns:
            batch[LABEL] = torch.tensor(rows["spent_after"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return ValueDNN(len(self.numeric), self.start)

    def losses(self, output, batch):
        return ziln_loss(output, batch[LABEL])

    def predict(self, output):
        p, loc, scale = output[:, 0].sigmoid(), output[:, 1], F.softplus(output[:, 2])
        return p * torch.exp(loc + 0.5 * scale**2)

    def score(self, predictions, labels):
        found = super().score(predictions, labels)
        if labels.min() < labels.max():  # equal customers have no order
            found["gini"] = gini(labels, predictions) / gini(labels, labels)
        return found
