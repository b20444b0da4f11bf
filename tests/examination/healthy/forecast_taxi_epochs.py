"""Rides of the next hour by zone: time as seconds since 1970, counts by their logarithm, a small MLP with an embedding.

data: taxi_zones

[data]
label = "rides"
time = "requested_at"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

DAY, WEEK = 24 * 3600, 7 * 24 * 3600


def cyclic(epoch, period):
    angle = 2 * np.pi * (epoch % period) / period
    return [np.sin(angle), np.cos(angle)]


class RidesNet(nn.Module):
    def __init__(self, n_zones, n_numeric):
        super().__init__()
        self.zone_emb = nn.Embedding(n_zones + 1, 8)
        self.net = nn.Sequential(
            nn.Linear(8 + n_numeric, 64), nn.ReLU(),
            nn.Linear(64, 32), nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, zone, numeric):
        return self.net(torch.cat([self.zone_emb(zone), numeric], dim=1))


class TaxiDemand(Task):
    kind = "regression"
    metrics = directions_of("mae", "wape", "rmse")

    def fit(self, train):
        df = train.collect()
        y = np.log1p(df["rides"].to_numpy())
        self.fitted = {
            "zones": sorted(df["zone"].unique().to_list()),
            "log_mean": float(y.mean()),
            "log_std": float(y.std()),
        }

    def to_log(self, counts):
        return (np.log1p(counts) - self.fitted["log_mean"]) / self.fitted["log_std"]

    def encode(self, rows):
        epoch = rows["epoch"].to_numpy()
        lags = self.to_log(np.array(rows["last_hours"].to_list(), dtype=float))
        clock = np.stack(cyclic(epoch, DAY) + cyclic(epoch, WEEK), axis=1)
        zone_id = {z: k + 1 for k, z in enumerate(self.fitted["zones"])}
        batch = {
            "zone": torch.tensor([zone_id.get(z, 0) for z in rows["zone"]]),
            "numeric": torch.tensor(np.hstack([lags, clock]), dtype=torch.float32),
        }
        if "rides" in rows.columns:
            batch[LABEL] = torch.tensor(rows["rides"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return RidesNet(len(self.fitted["zones"]), 6 + 4)

    def losses(self, output, batch):
        target = (torch.log1p(batch[LABEL]) - self.fitted["log_mean"]) / self.fitted["log_std"]
        return nn.functional.smooth_l1_loss(output.squeeze(1), target, reduction="none")

    def predict(self, output):
        return torch.expm1(output.squeeze(1) * self.fitted["log_std"] + self.fitted["log_mean"])
