"""Passengers of a ferry on the day: a GRU over four weeks, the answer relative to their mean, with calendar and wind.

data: ferry_passengers

[data]
label = "passengers"
time = "day"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

WINDOW = 28


class FerryGRU(nn.Module):
    def __init__(self, n_routes, hidden=32):
        super().__init__()
        self.rnn = nn.GRU(2, hidden, batch_first=True)
        self.route = nn.Embedding(n_routes + 1, 4)
        self.weekday = nn.Embedding(7, 6)
        self.mlp = nn.Sequential(nn.Linear(hidden + 14, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, seq, route, weekday, now, level):
        states, _ = self.rnn(seq)
        summary = states[:, -1]
        x = torch.cat([summary, self.route(route), self.weekday(weekday), now], dim=1)
        return self.mlp(x).squeeze(1) + level


class Ferries(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "routes": df["route"].unique().sort().to_list(),
            "wind": [df["wind_forecast"].mean(), df["wind_forecast"].std()],
        }

    def encode(self, rows):
        past = np.array(rows["past"].to_list(), dtype=float)
        level = np.log(np.nanmean(past, axis=1) + 1)
        relative = np.log1p(past) - level[:, None]
        gone = np.isnan(past)
        seq = np.stack([np.nan_to_num(relative), gone], axis=1).transpose(0, 2, 1)
        m, s = self.fitted["wind"]
        wind = (rows["wind_forecast"].to_numpy() - m) / s
        yday = rows["day"].dt.ordinal_day().to_numpy() * (2 * np.pi / 365.25)
        now = np.stack([wind, rows["holiday"].to_numpy(), np.sin(yday), np.cos(yday)], axis=1)
        ids = {name: i + 1 for i, name in enumerate(self.fitted["routes"])}
        batch = {
            "seq": torch.tensor(seq, dtype=torch.float32),
            "route": torch.tensor([ids.get(r, 0) for r in rows["route"]]),
            "weekday": torch.tensor(rows["day"].dt.weekday().cast(pl.Int64).to_numpy() - 1),
            "now": torch.tensor(now, dtype=torch.float32),
            "level": torch.tensor(level, dtype=torch.float32),
        }
        if "passengers" in rows.columns:
            batch[LABEL] = torch.tensor(rows["passengers"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return FerryGRU(len(self.fitted["routes"]))

    def losses(self, output, batch):
        return nn.functional.smooth_l1_loss(output, batch[LABEL].log1p(), reduction="none", beta=0.5)

    def predict(self, output):
        return output.expm1()
