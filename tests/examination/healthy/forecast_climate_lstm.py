"""The Jena example ported from Keras: LSTM over three series, three hours ahead.

data: climate

[data]
label = "temp_in_3h"
time = "at"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CHANNELS = ["temp", "humid", "wind_speed"]


def normalize(data, mean, std):
    return (data - mean) / std


class Jena(Task):
    kind = "regression"
    metrics = directions_of("mae", "r2")

    def fit(self, train):
        cube = self.cube(train.select(CHANNELS).collect())
        self.mean, self.std = cube.mean((0, 1)).tolist(), cube.std((0, 1)).tolist()

    @staticmethod
    def cube(df):
        return np.stack([np.array(df[c].to_list()) for c in CHANNELS], axis=-1)

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        x = normalize(self.cube(rows), np.array(self.mean), np.array(self.std))
        out = {"sequence": torch.tensor(x, dtype=torch.float32)}
        if self.columns.label in rows.columns:
            out[LABEL] = torch.tensor(normalize(rows["temp_in_3h"].to_numpy(), self.mean[0], self.std[0]), dtype=torch.float32)
        return out

    def build_model(self):
        return Forecaster()

    def losses(self, output, batch):
        return nn.functional.mse_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output

    def expected_initial_loss(self):
        return 1.0


class Forecaster(nn.Module):
    def __init__(self, units=32):
        super().__init__()
        self.lstm = nn.LSTM(3, units, batch_first=True)
        self.dense = nn.Linear(units, 1)

    def forward(self, sequence):
        out, _ = self.lstm(sequence)
        return self.dense(out[:, -1]).squeeze(-1)
