"""Hourly heat demand: calendar features, the weather forecast, the same hour of yesterday and of last week.

data: district_heat

[data]
label = "demand_mw"
time = "timestamp"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 800
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class HeatDemand(Task):
    kind = "regression"
    metrics = directions_of("mape", "rmse", "r2")

    def features(self, rows):
        t = rows["timestamp"]
        hour, weekday, day = (part.to_numpy().astype(float) for part in (t.dt.hour(), t.dt.weekday(), t.dt.ordinal_day()))
        temperature = rows["temperature"].fill_null(8.0).to_numpy()  # a mild day: few are missing
        columns = [np.sin(2 * np.pi * hour / 24), np.cos(2 * np.pi * hour / 24), np.sin(4 * np.pi * hour / 24), np.cos(4 * np.pi * hour / 24)]
        columns += [np.sin(2 * np.pi * day / 365.25), np.cos(2 * np.pi * day / 365.25)]
        columns += [(weekday == d).astype(float) for d in range(1, 8)]
        columns += [rows["is_holiday"].to_numpy().astype(float), temperature, np.maximum(17 - temperature, 0)]
        columns += [rows[c].to_numpy() for c in ("wind_speed", "demand_lag_24h", "demand_lag_168h")]
        return np.stack(columns, axis=1)

    def fit(self, train):
        df = train.collect()
        X, y = self.features(df), df["demand_mw"].to_numpy()
        self.fitted = {
            "mean": X.mean(0).tolist(), "std": (X.std(0) + 1e-8).tolist(),
            "y_mean": float(y.mean()), "y_std": float(y.std()),
        }

    def encode(self, rows):
        X = (self.features(rows) - self.fitted["mean"]) / self.fitted["std"]
        batch = {"x": torch.tensor(X, dtype=torch.float32)}
        if "demand_mw" in rows.columns:
            batch[LABEL] = torch.tensor(rows["demand_mw"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return DemandModel(19)

    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted["y_mean"]) / self.fitted["y_std"]
        return (output - target) ** 2

    def predict(self, output):
        return output * self.fitted["y_std"] + self.fitted["y_mean"]


class DemandModel(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)
