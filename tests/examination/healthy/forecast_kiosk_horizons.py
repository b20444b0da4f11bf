"""Bottles sold at kiosks one day to two weeks ahead: the horizon is a feature, promotions, holidays and forecasts are known.

data: kiosk_days

[data]
label = "sold"
time = "issued_on"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-3, weight_decay = 0.01 }
"""
import math

import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

LAGS = ["sold_today", "mean_7", "mean_28", "same_weekday"]
SCALED = [*LAGS, "temperature_forecast", "horizon"]


def design(rows):
    target_day = pl.col("issued_on") + pl.duration(days=pl.col("horizon"))
    angle = target_day.dt.ordinal_day().cast(pl.Float64) * (2 * math.pi / 365.25)
    return rows.select(
        pl.col("kiosk"),
        weekday=target_day.dt.weekday() - 1,
        sin=angle.sin(),
        cos=angle.cos(),
        promo=pl.col("promo").cast(pl.Float64),
        holiday=pl.col("holiday").cast(pl.Float64),
        no_lag=pl.col("sold_today").is_null().cast(pl.Float64),
        temperature_forecast=pl.col("temperature_forecast"),
        horizon=pl.col("horizon").log1p(),
        **{lag: pl.col(lag).fill_null(pl.col("mean_7")).log1p() for lag in LAGS},
    )


class KioskNet(nn.Module):
    def __init__(self, n_kiosks, n_in):
        super().__init__()
        self.kiosk = nn.Embedding(n_kiosks, 6)
        self.weekday = nn.Embedding(7, 4)
        self.net = nn.Sequential(nn.Linear(n_in + 10, 96), nn.SiLU(), nn.Linear(96, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, kiosk, weekday, x):
        return self.net(torch.cat((x, self.kiosk(kiosk), self.weekday(weekday)), dim=-1)).squeeze(-1)


class KioskDemand(Task):
    kind = "regression"
    metrics = directions_of("wape", "mae", "rmse")

    def fit(self, train):
        rows = train.collect()
        df = design(rows)
        target = rows["sold"].log1p()
        self.fitted = {
            "kiosks": df["kiosk"].unique().sort().to_list(),
            "mean": {c: df[c].mean() for c in SCALED},
            "std": {c: df[c].std() for c in SCALED},
            "target": [target.mean(), target.std()],
        }

    def encode(self, rows):
        df = design(rows)
        df = df.with_columns((pl.col(c) - self.fitted["mean"][c]) / self.fitted["std"][c] for c in SCALED)
        code = {k: i for i, k in enumerate(self.fitted["kiosks"], 1)}
        batch = {
            "kiosk": torch.tensor(df["kiosk"].replace_strict(code, default=0, return_dtype=pl.Int64).to_list()),
            "weekday": df["weekday"].cast(pl.Int64).to_torch(),
            "x": df.drop("kiosk", "weekday").cast(pl.Float32).to_torch(),
        }
        if "sold" in rows.columns:
            batch[LABEL] = rows["sold"].cast(pl.Float32).to_torch()
        return batch

    def build_model(self):
        return KioskNet(len(self.fitted["kiosks"]) + 1, len(SCALED) + 5)

    def losses(self, output, batch):
        mean, std = self.fitted["target"]
        return nn.functional.mse_loss(output, (torch.log1p(batch[LABEL]) - mean) / std, reduction="none")

    def predict(self, output):
        mean, std = self.fitted["target"]
        return torch.expm1(output * std + mean).clamp(min=0)

    def expected_initial_loss(self):
        return 1.0
