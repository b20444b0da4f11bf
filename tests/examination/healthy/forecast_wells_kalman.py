"""Groundwater next week: a Kalman filter of two reservoirs, its constants learned by likelihood.

data: groundwater_wells

[data]
label = "level"
time = "week"
time_is_feature = true
ids = ["row_id"]

[split]
period = "quarter"

[training]
steps = 250
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-2, weight_decay = 0.0 }
"""
import math

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

INSTRUMENTS = ["logger", "tape"]


def logit(p):
    return math.log(p / (1 - p))


class TwoReservoirs(nn.Module):
    """x' = A x + B u + w,  y = x1 + x2 + v;  A diagonal, a gap in y skips the update."""

    def __init__(self, wells):
        super().__init__()
        like = torch.ones(wells + 1, 1, dtype=torch.float64)
        self.decay = nn.Parameter(like * torch.tensor([logit(0.95), logit(0.6)]))
        self.gain = nn.Parameter(like * torch.tensor([-0.05, -0.1]))
        self.season = nn.Parameter(torch.zeros(wells + 1, 2, dtype=torch.float64))
        self.log_q = nn.Parameter(like * torch.tensor([-6.0, -5.0]))
        self.log_r = nn.Parameter(torch.full((len(INSTRUMENTS),), -4.0, dtype=torch.float64))
        self.ground = nn.Parameter(torch.zeros(wells + 1, dtype=torch.float64))

    def forward(self, levels, seen, rain, calendar, well, instrument, datum):
        A = self.decay[well].sigmoid()
        B, q = self.gain[well], self.log_q[well].exp()
        r = self.log_r[instrument].exp()
        evaporation = torch.einsum("btk,bk->bt", calendar, self.season[well])
        u = rain + evaporation
        x = torch.zeros(len(levels), 2, dtype=torch.float64)
        P = torch.diag_embed(torch.tensor([1.0, 0.2], dtype=torch.float64).expand(len(x), 2))
        y = levels - self.ground[well][:, None]
        for t in range(levels.shape[1]):
            x = A * x + B * u[:, t, None]
            P = A[:, :, None] * P * A[:, None, :] + torch.diag_embed(q)
            Pc = P.sum(dim=2)  # P C', with C = (1, 1)
            K = Pc / (Pc.sum(dim=1) + r)[:, None] * seen[:, t, None]
            x = x + K * (y[:, t] - x.sum(dim=1))[:, None]
            P = P - K[:, :, None] * Pc[:, None, :]
        x = A * x + B * u[:, -1, None]
        P = A[:, :, None] * P * A[:, None, :] + torch.diag_embed(q)
        mean = x.sum(dim=1) + self.ground[well] + datum
        return torch.stack([mean, P.sum(dim=(1, 2)) + r], dim=1)


class Wells(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")

    def fit(self, train):
        df = train.select("well", "levels", "rain_mm").collect()
        flat = df.explode("levels").group_by("well").agg(pl.col("levels").mean()).sort("well")
        rain = df["rain_mm"].explode()
        self.fitted = {
            "datum": dict(flat.iter_rows()),
            "rain": [rain.mean(), rain.std()],
        }

    def encode(self, rows):
        f = self.fitted
        past = np.array(rows["levels"].to_list(), dtype=np.float64)
        order = {name: k + 1 for k, name in enumerate(f["datum"])}
        own = np.nanmean(past, axis=1)  # for a well that is new
        datum = np.array([f["datum"].get(w, m) for w, m in zip(rows["well"], own)])
        rain = (np.array(rows["rain_mm"].to_list()) - f["rain"][0]) / f["rain"][1]
        day = rows["week"].dt.ordinal_day().to_numpy()[:, None]
        weeks_back = np.arange(past.shape[1], -1, -1)
        angle = 2 * np.pi * (day - 7 * weeks_back) / 365.25
        batch = {
            "levels": torch.from_numpy(np.nan_to_num(past - datum[:, None])),
            "seen": torch.from_numpy((~np.isnan(past)).astype(float)),
            "rain": torch.from_numpy(rain),
            "calendar": torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], axis=-1)),
            "well": torch.tensor([order.get(w, 0) for w in rows["well"]]),
            "instrument": torch.tensor([INSTRUMENTS.index(i) for i in rows["instrument"]]),
            "datum": torch.from_numpy(datum),
        }
        if "level" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["level"].to_numpy(writable=True))
        return batch

    def build_model(self):
        return TwoReservoirs(len(self.fitted["datum"]))

    def losses(self, output, batch):
        mean, variance = output.unbind(1)
        return 0.5 * ((batch[LABEL] - mean) ** 2 / variance + (2 * math.pi * variance).log())

    def predict(self, output):
        return output[:, 0]
