"""A day of load for buildings of a campus: the week as a picture of days by hours (TimesNet), degree days of the forecast, gaps masked.

data: campus_load

[data]
label = "load"
features = ["building", "past", "closed_tomorrow", "past_temperature", "temperature"]
time = "issued_at"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3, weight_decay = 0.01 }
schedule = { shape = "one_cycle" }
"""
import numpy as np
import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

DAYS, HOURS = 7, 24


class Inception_Block(nn.Module):
    def __init__(self, in_channels, out_channels, num_kernels=3):
        super().__init__()
        self.kernels = nn.ModuleList(
            [nn.Conv2d(in_channels, out_channels, kernel_size=2 * i + 1, padding=i) for i in range(num_kernels)]
        )

    def forward(self, x):
        return torch.stack([conv(x) for conv in self.kernels], dim=-1).mean(-1)


class Model(nn.Module):
    def __init__(self, n_buildings, d_model=12):
        super().__init__()
        self.block = nn.Sequential(Inception_Block(4, d_model), nn.GELU(), Inception_Block(d_model, d_model))
        self.building = nn.Embedding(n_buildings, 8)
        self.weekday = nn.Embedding(7, 4)
        self.head = nn.Sequential(nn.Linear(DAYS * d_model + 8 + 4 + 1 + 2, 64), nn.GELU(), nn.Linear(64, 1))
        self.hour = nn.Parameter(torch.zeros(HOURS))
        nn.init.zeros_(self.head[2].weight)
        nn.init.zeros_(self.head[2].bias)

    def forward(self, past, known, past_degrees, degrees, building, weekday, closed):
        B = past.shape[0]
        x = torch.stack([past, known, past_degrees[..., 0], past_degrees[..., 1]], dim=1)
        # 1D -> 2D: a row for each day
        x = x.reshape(B, 4, DAYS, HOURS)
        x = self.block(x)
        # the seven days of an hour are the features of that hour tomorrow
        x = x.permute(0, 3, 1, 2).reshape(B, HOURS, -1)
        static = torch.cat([self.building(building), self.weekday(weekday), closed[:, None]], dim=-1)
        x = torch.cat([x, static[:, None].expand(-1, HOURS, -1), degrees], dim=-1)
        typical = (past * known).view(B, DAYS, HOURS).sum(1) / known.view(B, DAYS, HOURS).sum(1).clamp(min=1)
        return typical + self.hour + self.head(x).squeeze(-1)


def degree_days(temperature):
    heating = (15 - temperature).clamp(min=0)
    cooling = (temperature - 18).clamp(min=0)
    return torch.stack([heating, cooling], dim=-1) / 10


class CampusLoad(Task):
    kind = "statistic"
    statistics = ("squared", "absolute")
    metrics = directions_of("forecast_rmse", "forecast_mae")

    def fit(self, train):
        df = train.select("building", "past").collect()
        scaler = {}
        for (name,), part in df.group_by("building"):
            values = part["past"].explode().drop_nulls().to_numpy()
            scaler[name] = [float(values.mean()), float(values.std())]
        values = df["past"].explode().drop_nulls().to_numpy()
        self.fitted = {"scaler": scaler, "other": [float(values.mean()), float(values.std())]}

    def encode(self, rows):
        scaler = self.fitted["scaler"]
        names = sorted(scaler)
        scale = np.array([scaler.get(b, self.fitted["other"]) for b in rows["building"]]).reshape(-1, 2)
        past = np.array(rows["past"].to_list(), dtype=float).reshape(-1, DAYS * HOURS)
        known = ~np.isnan(past)
        past = np.where(known, (past - scale[:, :1]) / scale[:, 1:], 0.0)
        seen = torch.tensor(rows["past_temperature"].to_list(), dtype=torch.float32)
        ahead = torch.tensor(rows["temperature"].to_list(), dtype=torch.float32)
        batch = {
            "past": torch.tensor(past, dtype=torch.float32),
            "known": torch.tensor(known, dtype=torch.float32),
            "past_degrees": degree_days(seen.repeat_interleave(3, dim=1)),
            "degrees": degree_days(ahead.repeat_interleave(3, dim=1)),
            "building": torch.tensor([names.index(b) + 1 if b in scaler else 0 for b in rows["building"]]),
            "weekday": torch.tensor((rows["issued_at"].dt.weekday() - 1).to_list()),
            "closed": torch.tensor(rows["closed_tomorrow"].to_list(), dtype=torch.float32),
        }
        if "load" in rows.columns:
            load = (np.array(rows["load"].to_list()) - scale[:, :1]) / scale[:, 1:]
            batch[LABEL] = torch.tensor(load, dtype=torch.float32)
        return batch

    def build_model(self):
        return Model(len(self.fitted["scaler"]) + 1)

    def losses(self, output, batch):
        return ((output - batch[LABEL]) ** 2).mean(dim=1)

    def statistic(self, output, batch):
        error = output - batch[LABEL]
        return torch.stack([error.square().mean(1), error.abs().mean(1)], dim=1)
