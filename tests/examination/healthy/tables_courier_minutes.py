"""Delivery time in minutes: haversine distance, hour as sine and cosine, Huber loss on a standardised target.

data: courier_trips

[data]
label = "minutes"
time = "ordered_at"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 3e-3, weight_decay = 0.01 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

WEATHER = ["Sunny", "Cloudy", "Rain", "Storm", "Fog"]
TRAFFIC = {"Low": 0.0, "Medium": 1.0, "High": 2.0, "Jam": 3.0}
VEHICLES = ["bicycle", "scooter", "car"]


def haversine(lat1, lon1, lat2, lon2):
    lat1, lon1, lat2, lon2 = map(np.radians, (lat1, lon1, lat2, lon2))
    a = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    return 6371 * 2 * np.arcsin(np.sqrt(a))


class DeliveryTime(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def numeric(self, rows):
        km = haversine(*(rows[c].to_numpy() for c in ("restaurant_lat", "restaurant_lon", "drop_lat", "drop_lon")))
        hour = (rows["ordered_at"].dt.hour() + rows["ordered_at"].dt.minute() / 60).to_numpy()
        return np.stack([
            km,
            np.sin(2 * np.pi * hour / 24),
            np.cos(2 * np.pi * hour / 24),
            (rows["ordered_at"].dt.weekday() > 5).to_numpy().astype(float),
            rows["traffic"].replace_strict(TRAFFIC).to_numpy(),
            rows["other_orders"].to_numpy().astype(float),
            rows["rider_rating"].cast(float).to_numpy(),
            rows["rider_age"].cast(float).to_numpy(),
        ], axis=1)

    def fit(self, train):
        df = train.collect()
        X, y = self.numeric(df), df["minutes"].to_numpy()
        self.fitted = {
            "mean": np.nanmean(X, axis=0).tolist(),
            "std": np.nanstd(X, axis=0).tolist(),
            "target": [float(y.mean()), float(y.std())],
        }

    def encode(self, rows):
        X = (self.numeric(rows) - self.fitted["mean"]) / self.fitted["std"]
        missing = np.isnan(X[:, -2:])
        flags = [(rows["weather"] == w).fill_null(False).to_numpy() for w in WEATHER]
        flags += [(rows["vehicle"] == v).to_numpy() for v in VEHICLES]
        X = np.concatenate([np.nan_to_num(X), missing, np.stack(flags, 1)], axis=1)
        batch = {"features": torch.from_numpy(X.astype(np.float32))}
        if "minutes" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["minutes"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return Regressor(8 + 2 + len(WEATHER) + len(VEHICLES))

    def losses(self, output, batch):
        mean, std = self.fitted["target"]
        return nn.functional.smooth_l1_loss(output, (batch[LABEL] - mean) / std, reduction="none")

    def predict(self, output):
        mean, std = self.fitted["target"]
        return output * std + mean


class Regressor(nn.Module):
    def __init__(self, d_in):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, features):
        return self.net(features)[:, 0]
