"""Backorders of a wholesaler: signed logs of skewed quantities, -99 means unknown, batch norm and
a weight for the rare class.

data: stock_backorders

[data]
label = "went_on_backorder"
ids = ["row_id", "sku"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Cleaner:
    """Columns of the export -> a matrix, with what has to be remembered."""

    skewed = ["national_inv", "in_transit_qty", "min_bank"]
    skewed += ["forecast_3_month", "forecast_6_month", "forecast_9_month"]
    skewed += ["sales_1_month", "sales_3_month", "sales_6_month", "sales_9_month"]
    plain = ["lead_time", "perf_6_month_avg"]
    yes_no = ["potential_issue", "stop_auto_buy"]

    def __init__(self, memory=None):
        self.memory = memory or {}

    def squash(self, v):
        return np.sign(v) * np.log1p(np.abs(v))

    def raw(self, df):
        df = df.with_columns(
            perf_6_month_avg=pl.when(pl.col("perf_6_month_avg") > -1).then(
                pl.col("perf_6_month_avg")
            )
        )
        skewed = df.select(self.skewed).to_numpy().astype(np.float64)
        plain = df.select(pl.col(self.plain).cast(pl.Float64)).to_numpy()
        flags = df.select((pl.col(c) == "Yes").cast(pl.Float64) for c in self.yes_no).to_numpy()
        return self.squash(skewed), plain, flags

    def learn(self, df):
        skewed, plain, _ = self.raw(df)
        center = np.nanmedian(plain, axis=0)
        filled = np.where(np.isnan(plain), center, plain)
        self.memory = {
            "center": center.tolist(),
            "loc": np.hstack([skewed, filled]).mean(0).tolist(),
            "scale": np.hstack([skewed, filled]).std(0).tolist(),
        }
        return self

    def transform(self, df):
        skewed, plain, flags = self.raw(df)
        unknown = np.isnan(plain)
        plain = np.where(unknown, self.memory["center"], plain)
        numbers = (np.hstack([skewed, plain]) - self.memory["loc"]) / self.memory["scale"]
        return np.hstack([numbers, unknown, flags]).astype(np.float32)


class BackorderNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        blocks = []
        for a, b in [(n, 64), (64, 32)]:
            blocks += [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.1)]
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        logit = self.head(self.body(x))
        return logit.view(-1)


class Backorders(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def fit(self, train):
        df = train.collect()
        share = (df["went_on_backorder"] == "Yes").mean()
        self.fitted = {
            "cleaner": Cleaner().learn(df).memory,
            "pos_weight": float(np.sqrt((1 - share) / share)),
        }

    def encode(self, rows):
        batch = {"x": torch.from_numpy(Cleaner(self.fitted["cleaner"]).transform(rows))}
        if "went_on_backorder" in rows.columns:
            batch[LABEL] = torch.from_numpy(
                (rows["went_on_backorder"] == "Yes").to_numpy().astype(np.float32)
            )
        return batch

    def build_model(self):
        return BackorderNet(len(Cleaner.skewed) + 2 * len(Cleaner.plain) + len(Cleaner.yes_no))

    def losses(self, output, batch):
        return nn.BCEWithLogitsLoss(reduction="none")(output, batch[LABEL])

    def training_losses(self, output, batch):
        w = torch.tensor(self.fitted["pos_weight"])
        return nn.BCEWithLogitsLoss(reduction="none", pos_weight=w)(output, batch[LABEL])
