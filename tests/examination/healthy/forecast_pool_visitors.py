"""Visitors of open-air pools for the next seven days: a plain PyTorch script with an LSTM.

data: pool_days

[data]
label = "visitors_ahead"
time = "issued"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, weight_decay = 0.02 }
schedule = { shape = "cosine", warmup_fraction = 0.05 }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAST, AHEAD = 28, 7


class PoolLSTM(nn.Module):
    def __init__(self, pools, hidden=32):
        super().__init__()
        self.pool = nn.Embedding(pools, 4)
        self.lstm = nn.LSTM(3, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden + 4 + 9, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, past, ahead, level, pool):
        out, _ = self.lstm(past)
        context = torch.cat([out[:, -1], self.pool(pool)], dim=1)
        context = context[:, None].expand(-1, AHEAD, -1)
        change = self.head(torch.cat([context, ahead], dim=2)).squeeze(-1)
        return level[:, None] + change


class PoolVisitors(Task):
    kind = "statistic"
    statistics = ("absolute", "squared")
    metrics = directions_of("forecast_mae", "forecast_rmse")
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        warm = np.array(df["warm_past"].to_list())
        self.fitted = {
            "pools": sorted(df["pool"].unique()),
            "warm": [float(warm.mean()), float(warm.std())],
        }

    def encode(self, rows):
        mean, std = self.fitted["warm"]
        visitors = np.array(rows["visitors_past"].to_list(), dtype=float).reshape(-1, PAST)
        logs = np.log1p(visitors)
        level = np.nanmean(logs, axis=1, keepdims=True)
        missing = np.isnan(logs)
        warm = (np.array(rows["warm_past"].to_list()) - mean) / std
        past = np.stack([np.where(missing, 0, logs - level), missing, warm], axis=2)
        warm_ahead = (np.array(rows["warm_ahead"].to_list()) - mean) / std
        weekday = np.eye(7)[np.array(rows["weekday_ahead"].to_list())]
        holiday = np.array(rows["holiday_ahead"].to_list())
        ahead = np.concatenate([warm_ahead[..., None], weekday, holiday[..., None]], axis=2)
        number = {name: k for k, name in enumerate(self.fitted["pools"], start=1)}
        batch = {
            "past": torch.tensor(past, dtype=torch.float32),
            "ahead": torch.tensor(ahead, dtype=torch.float32),
            "level": torch.tensor(level[:, 0], dtype=torch.float32),
            "pool": torch.tensor([number.get(name, 0) for name in rows["pool"]]),
        }
        if "visitors_ahead" in rows.columns:
            batch[LABEL] = torch.tensor(rows["visitors_ahead"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return PoolLSTM(len(self.fitted["pools"]) + 1)

    def losses(self, output, batch):
        target = torch.log1p(batch[LABEL])
        return nn.functional.huber_loss(output, target, reduction="none").mean(dim=1)

    def predict(self, output):
        return torch.expm1(output).clamp(min=0)

    def statistic(self, output, batch):
        error = self.predict(output) - batch[LABEL]
        return torch.stack([error.abs().mean(1), error.square().mean(1)], dim=1).double()
