"""The coming night's lowest temperature, after Keras's tutorial on the weather of Jena: wind as a
vector, -9999 for no reading, the clock as sine and cosine, a convolution over the last day.

data: station_nights

[data]
label = "low"
time = "asked_at"
time_is_feature = true
ids = ["row_id"]
meta = ["station"]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
schedule = { shape = "cosine" }
"""

import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

INPUT_WIDTH = 24
CONV_WIDTH = 4
HOURS_OF_DAY, DAYS_OF_YEAR = 24, 365.2425


def column(rows, name):
    return np.array(rows[name].to_list(), dtype=np.float64)


def series(rows):
    """[N, 24, 4]: temperature, humidity, and the wind's two parts."""
    wv = column(rows, "wind_speed")
    wv = np.where(wv == -9999.0, 0.0, wv)
    wd = column(rows, "wind_direction") * np.pi / 180
    return np.stack(
        [column(rows, "temperature"), column(rows, "humidity"), wv * np.cos(wd), wv * np.sin(wd)],
        axis=2,
    )


class ConvModel(nn.Module):
    def __init__(self, n_features=4, filters=24):
        super().__init__()
        self.conv = nn.Conv1d(n_features, filters, kernel_size=CONV_WIDTH, stride=2)
        length = (INPUT_WIDTH - CONV_WIDTH) // 2 + 1
        self.dense = nn.Linear(filters * length + 4, 48)
        self.out = nn.Linear(48, 1)
        nn.init.zeros_(self.out.weight)  # it starts as the last temperature
        nn.init.zeros_(self.out.bias)

    def forward(self, inputs, signals):
        x = torch.relu(self.conv(inputs.permute(0, 2, 1)))
        x = torch.relu(self.dense(torch.cat([x.flatten(1), signals], dim=1)))
        delta = self.out(x).squeeze(1)
        return inputs[:, -1, 0] + delta


class NightLow(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        x = series(train.collect())
        self.fitted = {
            "mean": x.mean(axis=(0, 1)).tolist(),
            "std": x.std(axis=(0, 1)).tolist(),
        }

    def encode(self, rows):
        x = (series(rows) - self.fitted["mean"]) / self.fitted["std"]
        hour = rows["asked_at"].dt.hour().to_numpy() * (2 * math.pi / HOURS_OF_DAY)
        day = rows["asked_at"].dt.ordinal_day().to_numpy() * (2 * math.pi / DAYS_OF_YEAR)
        signals = np.stack([np.sin(hour), np.cos(hour), np.sin(day), np.cos(day)], axis=1)
        batch = {
            "inputs": torch.tensor(x, dtype=torch.float32),
            "signals": torch.tensor(signals, dtype=torch.float32),
        }
        if "low" in rows.columns:
            batch[LABEL] = torch.tensor(rows["low"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return ConvModel()

    def scaled(self, label):
        return (label - self.fitted["mean"][0]) / self.fitted["std"][0]

    def losses(self, output, batch):
        return (output - self.scaled(batch[LABEL])) ** 2

    def predict(self, output):
        return output * self.fitted["std"][0] + self.fitted["mean"][0]
