"""Counts per hour with PoissonNLLLoss and a log link.

data: departures_per_hour

[data]
label = "departures"
time = "hour_starts"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def one_hot(values, choices):
    return np.array([[v == c for c in choices] for v in values], dtype=np.float32)


class Departures(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae")

    def fit(self, train):
        y = train.select("departures").collect()["departures"].to_numpy().astype(float)
        self.rate = float(y.mean())

    def state(self):
        return {"rate": self.rate}

    def load_state(self, state):
        self.rate = state["rate"]

    def encode(self, rows):
        x = np.concatenate([
            one_hot(rows["origin"], ["EWR", "JFK", "LGA"]),
            one_hot(rows["hour"], range(5, 24)),
            one_hot(rows["weekday"], range(1, 8)),
        ], axis=1)
        out = {"x": torch.from_numpy(x)}
        if "departures" in rows.columns:
            out[LABEL] = torch.from_numpy(rows["departures"].to_numpy().astype(np.float32))
        return out

    def build_model(self):
        net = PoissonNet(3 + 19 + 7)
        nn.init.constant_(net.out.bias, math.log(self.rate))
        return net

    def losses(self, output, batch):
        return nn.functional.poisson_nll_loss(output, batch[LABEL], log_input=True, reduction="none")

    def predict(self, output):
        return output.exp()

    def expected_initial_loss(self):
        return self.rate - self.rate * math.log(self.rate)


class PoissonNet(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.hidden(x)).squeeze(-1)
