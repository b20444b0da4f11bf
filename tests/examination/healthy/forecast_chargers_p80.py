"""Energy that a car park's chargers need in the next hour, not exceeded in four of five hours.

A convolutional network in the style of PyTorch Lightning, the pinball loss at 0.8.

data: charger_hours

[data]
label = "wh_next"
time = "hour"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3, weight_decay = 0.01 }
schedule = { shape = "cosine" }
"""

import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

HOURS = 12
QUANTILE = 0.8


def pinball(prediction, target):
    error = target - prediction
    return torch.maximum(QUANTILE * error, (QUANTILE - 1) * error)


class ChargerConv(nn.Module):
    def __init__(self, kinds, channels=24):
        super().__init__()
        self.kind = nn.Embedding(kinds, 3)
        self.conv = nn.Sequential(
            nn.Conv1d(2, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(channels, channels, 3, padding=2, dilation=2),
            nn.ReLU(),
            nn.Conv1d(channels, 8, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(8 * HOURS + 3 + 6, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, past, calendar, kind):
        h = torch.cat([self.conv(past), self.kind(kind), calendar], dim=1)
        return self.head(h).squeeze(-1)


class ChargerEnergy(Task):
    kind = "regression"
    metrics = directions_of("pinball_80", "mae")

    def fit(self, train):
        df = train.collect()
        past = np.array(df["wh_past"].to_list(), dtype=float)
        slots = df["slots"].to_numpy()
        self.fitted = {
            "kinds": sorted(df["kind"].unique()),
            "scale": float(np.nanstd(past)),
            "mean": float(np.nanmean(past)),
            "slots": [float(slots.mean()), float(slots.std())],
        }

    def encode(self, rows):
        watt_hours = np.array(rows["wh_past"].to_list(), dtype=float)
        missing = np.isnan(watt_hours)
        scaled = (watt_hours - self.fitted["mean"]) / self.fitted["scale"]
        past = np.stack([np.where(missing, 0, scaled), missing], axis=1)
        hour, weekday = rows["hour"].dt.hour().to_numpy(), rows["hour"].dt.weekday().to_numpy()
        day = hour * (2 * math.pi / 24)
        mean, std = self.fitted["slots"]
        calendar = np.stack(
            [
                np.sin(day),
                np.cos(day),
                np.sin(2 * day),
                np.cos(2 * day),
                weekday >= 6,
                (rows["slots"].to_numpy() - mean) / std,
            ],
            axis=1,
        )
        number = {name: k for k, name in enumerate(self.fitted["kinds"], start=1)}
        batch = {
            "past": torch.tensor(past, dtype=torch.float32),
            "calendar": torch.tensor(calendar, dtype=torch.float32),
            "kind": torch.tensor([number.get(name, 0) for name in rows["kind"]]),
        }
        if "wh_next" in rows.columns:
            batch[LABEL] = torch.tensor(rows["wh_next"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return ChargerConv(len(self.fitted["kinds"]) + 1)

    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted["mean"]) / self.fitted["scale"]
        return pinball(output, target)

    def predict(self, output):
        return (output * self.fitted["scale"] + self.fitted["mean"]).clamp(min=0)
