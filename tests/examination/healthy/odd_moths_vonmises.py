"""Headings of moths: a von Mises distribution, its direction from a vector in the plane.

data: moth_headings

[data]
label = "heading"
time = "released"
ids = ["row_id", "tag"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.01 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

SPECIES = ["gamma", "hawk", "underwing", "burnet"]


def unit(degrees):
    """A compass bearing as (east, north)."""
    radians = np.deg2rad(degrees)
    return np.stack([np.sin(radians), np.cos(radians)], axis=1)


class Heading(nn.Module):
    """A vector in the plane: its angle is the heading, its length the concentration."""

    def __init__(self, n_in):
        super().__init__()
        self.home = nn.Linear(len(SPECIES), 2, bias=False)
        self.drift = nn.Linear(len(SPECIES), 1, bias=False)
        self.gates = nn.Sequential(nn.Linear(n_in, 24), nn.Tanh(), nn.Linear(24, 2))
        self.rest = nn.Sequential(nn.Linear(n_in + 2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x, species, wind):
        a, b = self.gates(torch.cat([x, species], 1)).chunk(2, dim=1)
        goal = self.home(species) * a.exp() + wind * self.drift(species) * b.exp()
        return goal + self.rest(torch.cat([x, species, wind], 1))


class Moths(Task):
    kind = "statistic"
    metrics = {"nll": "minimize", "degrees_off": "minimize"}

    def fit(self, train):
        df = train.select("moon_pct", "height_m").collect()
        log_height = df["height_m"].log()
        self.fitted = {
            "moon": df["moon_pct"].mean(),
            "height": [log_height.mean(), log_height.std()],
        }

    def encode(self, rows):
        moon = rows["moon_pct"].fill_null(self.fitted["moon"]).to_numpy() / 100
        clear = 1 - rows["cloud_oktas"].to_numpy() / 8
        mean, std = self.fitted["height"]
        height = (np.log(rows["height_m"].to_numpy()) - mean) / std
        light = moon * clear
        numbers = np.stack([moon - 0.5, clear - 0.5, light - 0.25, height], axis=1)
        speed = rows["wind_ms"].to_numpy()[:, None] / 4
        wind = -unit(rows["wind_from"].to_numpy()) * speed  # it blows to where it is not from
        species = rows["species"].to_numpy()[:, None] == np.array(SPECIES)
        x = np.concatenate([numbers, speed - 1], axis=1)
        batch = {
            "x": torch.from_numpy(x).float(),
            "species": torch.from_numpy(species).float(),
            "wind": torch.from_numpy(wind).float(),
        }
        if self.columns.label in rows.columns:
            degrees = rows[self.columns.label].to_numpy().astype(np.float32)
            batch[LABEL] = torch.from_numpy(np.deg2rad(degrees))
        return batch

    def build_model(self):
        return Heading(5 + len(SPECIES))

    def losses(self, output, batch):
        # log I0(k) = log(I0(k) e^-k) + k;  k cos(heading - mu) is an inner product
        kappa = output.norm(dim=1).clamp(min=1e-4)
        east, north = output.unbind(1)
        inner = east * batch[LABEL].sin() + north * batch[LABEL].cos()
        return math.log(2 * math.pi) + torch.special.i0e(kappa).log() + kappa - inner

    def statistic(self, output, batch):
        mu = torch.atan2(output[:, 0], output[:, 1])
        off = torch.remainder(mu - batch[LABEL] + math.pi, 2 * math.pi) - math.pi
        return torch.stack([self.losses(output, batch), off.abs().rad2deg()], dim=1)

    def score(self, predictions, labels):
        nll, off = np.average(predictions, axis=0, weights=labels)
        return {"nll": float(nll), "degrees_off": float(off)}
