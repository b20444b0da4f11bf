"""House values by block in dollars: Huber on a scaled target, whole districts held out.

data: districts

[data]
label = "median_house_value"
group = "district"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMBERS = ["longitude", "latitude", "housing_median_age", "rooms", "population", "median_income"]
SKEWED = {"population", "median_income"}


class California(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def numbers(self, df):
        return np.stack([np.log(df[c].to_numpy()) if c in SKEWED else df[c].to_numpy() for c in NUMBERS], 1)

    def fit(self, train):
        df = train.collect()
        x, y = self.numbers(df), df["median_house_value"].to_numpy()
        self.fitted = {
            "x_mean": x.mean(0).tolist(),
            "x_std": x.std(0).tolist(),
            "y_mean": float(y.mean()),
            "y_std": float(y.std()),
            "places": sorted(df["ocean_proximity"].unique().to_list()),
        }

    def encode(self, rows):
        f = self.fitted
        x = (self.numbers(rows) - f["x_mean"]) / f["x_std"]
        place = np.array([[p == q for q in f["places"]] for p in rows["ocean_proximity"]], dtype=float)
        batch = {"features": torch.tensor(np.concatenate([x, place], 1), dtype=torch.float32)}
        if "median_house_value" in rows.columns:
            y = (rows["median_house_value"].to_numpy() - f["y_mean"]) / f["y_std"]
            batch[LABEL] = torch.tensor(y, dtype=torch.float32)
        return batch

    def build_model(self):
        return Regressor(len(NUMBERS) + len(self.fitted["places"]))

    def losses(self, output, batch):
        return nn.functional.smooth_l1_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output * self.fitted["y_std"] + self.fitted["y_mean"]

    def score(self, predictions, labels):
        return super().score(predictions, labels * self.fitted["y_std"] + self.fitted["y_mean"])


class Regressor(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)
        )

    def forward(self, features):
        return self.layers(features)[:, 0]
