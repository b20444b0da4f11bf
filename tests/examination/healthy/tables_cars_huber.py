"""Prices with slips of the pen: Huber's loss on the standardised price.

data: used_cars

[data]
label = "price_k"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class UsedCars(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        df = train.collect()
        self.brands = sorted(df["brand"].unique().to_list())
        self.num = {c: [float(df[c].mean()), float(df[c].std())] for c in ("km", "age", "power")}
        y = df["price_k"].to_numpy()
        self.center = float(np.median(y))
        self.spread = float(1.4826 * np.median(np.abs(y - self.center)))
        z = torch.tensor((y - self.center) / self.spread)
        self.start = float(nn.functional.huber_loss(torch.zeros_like(z), z))

    def state(self):
        return {"brands": self.brands, "num": self.num, "center": self.center, "spread": self.spread, "start": self.start}

    def load_state(self, state):
        for key, value in state.items():
            setattr(self, key, value)

    def encode(self, rows):
        x = rows.select(
            *[((pl.col(c) - m) / s).alias(c) for c, (m, s) in self.num.items()],
            *[(pl.col("brand") == b).cast(pl.Float64).alias(b) for b in self.brands],
        )
        x = x.select(sorted(x.columns))
        batch = {"x": torch.tensor(x.to_numpy(), dtype=torch.float32)}
        if "price_k" in rows.columns:
            batch[LABEL] = torch.tensor(rows["price_k"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        torch_net = nn.Sequential(
            nn.Linear(3 + len(self.brands), 64), nn.LayerNorm(64), nn.GELU(),
            nn.Dropout(0.05), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 1),
        )
        with torch.no_grad():
            torch_net[-1].weight.mul_(0.05)
            torch_net[-1].bias.zero_()
        return Squeezed(torch_net)

    def losses(self, output, batch):
        target = (batch[LABEL] - self.center) / self.spread
        return nn.functional.huber_loss(output, target, reduction="none")

    def predict(self, output):
        return output * self.spread + self.center

    def expected_initial_loss(self):
        return self.start


class Squeezed(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).squeeze(-1)
