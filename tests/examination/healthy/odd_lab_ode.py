"""Irregular measurements by an ODE-RNN: between two of them the hidden state flows (Runge-Kutta), then a GRU cell updates it.

data: lab_series

[data]
label = "value_then"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

N = 10
HOURS = 10.0


def rk4(f, h, dt):
    k1 = f(h)
    k2 = f(h + dt / 2 * k1)
    k3 = f(h + dt / 2 * k2)
    k4 = f(h + dt * k3)
    return h + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class ODERNN(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.field = nn.Sequential(nn.Linear(hidden, 32), nn.Tanh(), nn.Linear(32, hidden))
        self.cell = nn.GRUCell(1, hidden)
        self.readout = nn.Linear(hidden, 1)
        self.hidden = hidden

    def forward(self, values, gaps, seen, last_gap):
        h = values.new_zeros(len(values), self.hidden)
        for t in range(values.shape[1]):
            here = seen[:, t, None]
            flowed = rk4(self.field, h, gaps[:, t, None])
            updated = self.cell(values[:, t, None], flowed)
            h = torch.where(here, updated, h)
        for _ in range(2):
            h = rk4(self.field, h, last_gap[:, None] / 2)
        return self.readout(h).squeeze(-1)


class LabValues(Task):
    kind = "regression"
    metrics = directions_of("rmse", "r2")

    def fit(self, train):
        flat = train.select("values").collect()["values"].explode().to_numpy()
        self.mean, self.std = float(flat.mean()), float(flat.std())

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        values, gaps = np.zeros((rows.height, N)), np.zeros((rows.height, N))
        seen = np.zeros((rows.height, N), dtype=bool)
        last = np.zeros(rows.height)
        for i, (hours, vals, asked) in enumerate(rows.select("hours", "values", "asked_hour").iter_rows()):
            n = len(hours)
            values[i, :n] = (np.array(vals) - self.mean) / self.std
            gaps[i, :n] = np.diff(hours, prepend=hours[0]) / HOURS
            seen[i, :n] = True
            last[i] = (asked - hours[-1]) / HOURS
        to = lambda a: torch.tensor(a, dtype=torch.float32)
        batch = {"values": to(values), "gaps": to(gaps), "seen": torch.tensor(seen), "last_gap": to(last)}
        if "value_then" in rows.columns:
            batch[LABEL] = to(rows["value_then"].to_numpy())
        return batch

    def build_model(self):
        return ODERNN()

    def losses(self, output, batch):
        target = (batch[LABEL] - self.mean) / self.std
        return (output - target).square()

    def predict(self, output):
        return output * self.std + self.mean
