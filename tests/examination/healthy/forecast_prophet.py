"""Prophet's curve: a trend with change points, Fourier terms of year and week, no history at all.

data: bike_rentals

[data]
label = "rides"
time = "date"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-2, weight_decay = 0.0 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

STATIONS = ["campus", "harbour"]


def fourier(day, period, order):
    angle = 2 * np.pi * np.arange(1, order + 1) * day[:, None] / period
    return np.hstack([np.sin(angle), np.cos(angle)])


class Curve(nn.Module):
    """Everything is linear in what is learned, and apart for each station."""

    def __init__(self, n_change, n_waves):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(2))
        self.slope = nn.Parameter(torch.zeros(2))
        self.delta = nn.Parameter(torch.zeros(2, n_change))
        self.beta = nn.Parameter(torch.zeros(2, n_waves))

    def forward(self, station, t, hinges, waves):
        trend = self.offset[station] + self.slope[station] * t + (self.delta[station] * hinges).sum(1)
        return trend + (self.beta[station] * waves).sum(1)


class Prophet(Task):
    kind = "regression"
    metrics = directions_of("wape", "mae")

    def fit(self, train):
        df = train.select("day", "rides").collect()
        self.last = int(df["day"].max())
        self.changes = np.linspace(0, 0.8, 12)[1:].tolist()
        logs = np.log(df["rides"].to_numpy() + 1)
        self.mean, self.std = float(logs.mean()), float(logs.std())

    def state(self):
        return {"last": self.last, "changes": self.changes, "mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.__dict__.update(state)

    def encode(self, rows):
        day = rows["day"].to_numpy().astype(np.float64)
        t = day / self.last
        hinges = np.maximum(t[:, None] - np.array(self.changes), 0)
        waves = np.hstack([fourier(day, 365.25, 4), fourier(day, 7, 3)])
        batch = {
            "station": torch.tensor([STATIONS.index(s) for s in rows["station"]]),
            "t": torch.tensor(t, dtype=torch.float32),
            "hinges": torch.tensor(hinges, dtype=torch.float32),
            "waves": torch.tensor(waves, dtype=torch.float32),
        }
        if "rides" in rows.columns:
            batch[LABEL] = torch.tensor(rows["rides"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Curve(len(self.changes), 14)

    def losses(self, output, batch):
        return (output - (torch.log(batch[LABEL] + 1) - self.mean) / self.std).square()

    def predict(self, output):
        return torch.expm1(output * self.std + self.mean)

    def expected_initial_loss(self):
        return 1.0
