"""Energy per square metre of offices: what is unknown gets the median and a column that says so.

data: office_energy

[data]
label = "kwh_per_m2"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import polars as pl
import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUM_COLS = ["year_built", "floor_area", "occupants", "glazing", "degree_days"]
LOG_COLS = ["floor_area", "occupants"]
TARGET = "kwh_per_m2"


def prepare(df):
    return df.with_columns([pl.col(c).log() for c in LOG_COLS])


class Regressor(nn.Module):
    def __init__(self, in_features: int, hidden: int = 48):
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 1)
        self.act = nn.SiLU()

    def forward(self, x):
        x = self.act(self.fc1(x))
        x = self.act(self.fc2(x))
        return self.fc3(x)


class EnergyUse(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")

    def fit(self, train):
        df = prepare(train.collect())
        self.fitted = {
            "median": {c: df[c].median() for c in NUM_COLS},
            "mean": {c: df[c].mean() for c in NUM_COLS},
            "std": {c: df[c].std() for c in NUM_COLS},
            "heating": sorted(df["heating"].unique().to_list()),
            # the target is normalised, too
            "target_mean": df[TARGET].mean(),
            "target_std": df[TARGET].std(),
        }

    def encode(self, rows):
        f = self.fitted
        df = prepare(rows)
        cols = []
        for c in NUM_COLS:
            filled = df[c].fill_null(f["median"][c])
            cols.append((filled - f["mean"][c]) / f["std"][c])
            cols.append(df[c].is_null().cast(pl.Float64))  # the indicator
        for kind in f["heating"]:
            cols.append((df["heating"] == kind).cast(pl.Float64))
        x = torch.stack([torch.tensor(c.to_list(), dtype=torch.float32) for c in cols], dim=1)
        batch = {"x": x}
        if TARGET in rows.columns:
            batch[LABEL] = torch.tensor(rows[TARGET].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Regressor(in_features=2 * len(NUM_COLS) + len(self.fitted["heating"]))

    def normalized(self, y):
        return (y - self.fitted["target_mean"]) / self.fitted["target_std"]

    def losses(self, output, batch):
        target = self.normalized(batch[LABEL])
        return nn.functional.mse_loss(output, target.unsqueeze(1), reduction="none").mean(dim=1)

    def predict(self, output):
        return output.squeeze(1) * self.fitted["target_std"] + self.fitted["target_mean"]

    def expected_initial_loss(self):
        return 1.0
