"""Bikes per hour: sine and cosine of the hour, one-hot weather, a standardised count, as in many notebooks.

data: bike_sharing

[data]
label = "cnt"
time = "dteday"
features = ["hr", "weekday", "weathersit", "temp", "hum", "windspeed"]
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "constant" }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

WEATHER = ("clear", "mist", "rain")


class BikeNet(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(n_in, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


class BikeCount(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")

    def features(self, df):
        hour, day = df["hr"].to_numpy(), df["weekday"].to_numpy()
        columns = [np.sin(2 * np.pi * hour / 24), np.cos(2 * np.pi * hour / 24)]
        columns += [np.sin(4 * np.pi * hour / 24), np.cos(4 * np.pi * hour / 24)]
        columns += [(day >= 5).astype(float)]
        columns += [(df["weathersit"] == w).to_numpy().astype(float) for w in WEATHER]
        columns += [2 * df[c].to_numpy() - 1 for c in ("temp", "hum", "windspeed")]
        return np.stack(columns, axis=1)

    def fit(self, train):
        count = train.select("cnt").collect()["cnt"].to_numpy().astype(float)
        self.fitted = {"mean": float(count.mean()), "std": float(count.std())}

    def encode(self, rows):
        batch = {"x": torch.from_numpy(self.features(rows)).float()}
        if "cnt" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["cnt"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return BikeNet(11)

    def losses(self, output, batch):
        y = (batch[LABEL] - self.fitted["mean"]) / self.fitted["std"]
        return nn.functional.mse_loss(output.squeeze(-1), y, reduction="none")

    def predict(self, output):
        return output.squeeze(-1) * self.fitted["std"] + self.fitted["mean"]

    def expected_initial_loss(self):
        return 1.0
