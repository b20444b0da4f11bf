"""The ninth decile of the time in the air, by the pinball loss.

data: air_time

[data]
label = "air_time"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

Q = 0.9


class AirTimeQuantile(Task):
    kind = "regression"
    metrics = directions_of("pinball_90", "mae")

    def fit(self, train):
        df = train.collect()
        self.dests = sorted(df["dest"].unique().to_list())
        self.carriers = sorted(df["carrier"].unique().to_list())
        self.dist = [df["distance"].mean(), df["distance"].std()]
        y = df["air_time"].to_numpy()
        self.center, self.scale = float(np.quantile(y, Q)), float(y.std())
        z = (y - self.center) / self.scale
        self.start = float(np.maximum(Q * z, (Q - 1) * z).mean())

    def state(self):
        return {k: getattr(self, k) for k in ("dests", "carriers", "dist", "center", "scale", "start")}

    def load_state(self, state):
        for k, v in state.items():
            setattr(self, k, v)

    def encode(self, rows):
        dest = rows["dest"].replace_strict({d: i + 1 for i, d in enumerate(self.dests)}, default=0, return_dtype=pl.Int64)
        carrier = rows["carrier"].replace_strict({c: i + 1 for i, c in enumerate(self.carriers)}, default=0, return_dtype=pl.Int64)
        dist = ((rows["distance"] - self.dist[0]) / self.dist[1]).to_numpy().astype(np.float32)
        season = 2 * np.pi * rows["month"].to_numpy() / 12
        num = np.stack([dist, np.sin(season), np.cos(season), rows["hour"].to_numpy() / 24], axis=1).astype(np.float32)
        batch = {"dest": torch.from_numpy(dest.to_numpy().copy()), "carrier": torch.from_numpy(carrier.to_numpy().copy()), "num": torch.from_numpy(num)}
        if "air_time" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["air_time"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return QuantileNet(len(self.dests) + 1, len(self.carriers) + 1)

    def losses(self, output, batch):
        e = (batch[LABEL] - self.center) / self.scale - output
        return torch.max(Q * e, (Q - 1) * e)

    def predict(self, output):
        return self.center + self.scale * output

    def expected_initial_loss(self):
        return self.start


class QuantileNet(nn.Module):
    def __init__(self, n_dest, n_carrier):
        super().__init__()
        self.dest, self.carrier = nn.Embedding(n_dest, 8), nn.Embedding(n_carrier, 4)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
        self.mlp[-1].weight.data *= 0.1
        self.mlp[-1].bias.data.zero_()

    def forward(self, dest, carrier, num):
        return self.mlp(torch.cat((self.dest(dest), self.carrier(carrier), num), dim=-1)).flatten()
