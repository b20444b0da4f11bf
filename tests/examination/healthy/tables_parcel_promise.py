"""Hours in which nine parcels of ten arrive, for a shop's promise: a ColumnTransformer of
scikit-learn, kept as JSON, and the pinball loss at 0.9.

data: parcel_hours

[data]
label = "hours"
time = "ordered_at"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 700
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMERIC = ["distance_km", "weight_kg", "backlog", "hour"]
CATEGORICAL = ["carrier", "region", "weekday", "in_stock"]
QUANTILE = 0.9


def frame_of(rows):
    df = rows.select("carrier", "region", "distance_km", "weight_kg", "in_stock", "backlog")
    df = df.to_pandas()
    ordered = rows["ordered_at"].to_pandas()
    df["hour"] = (ordered.dt.hour + ordered.dt.minute / 60).to_numpy()
    df["weekday"] = ordered.dt.day_name().to_numpy()
    df["in_stock"] = df["in_stock"].map({True: "yes", False: "no"})
    return df


def pipeline():
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    dummies = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return ColumnTransformer([("num", numbers, NUMERIC), ("cat", dummies, CATEGORICAL)])


class ParcelPromise(Task):
    kind = "regression"
    metrics = directions_of("pinball_90", "mae")

    def fit(self, train):
        rows = train.collect()
        ct = pipeline().fit(frame_of(rows))
        imputer, scaler = ct.named_transformers_["num"]
        y = rows["hours"].to_numpy()
        self.fitted = {
            "medians": imputer.statistics_.tolist(),
            "mean": scaler.mean_.tolist(),
            "scale": scaler.scale_.tolist(),
            "levels": [c.tolist() for c in ct.named_transformers_["cat"].categories_],
            "y_mean": float(y.mean()),
            "y_std": float(y.std()),
        }

    def transform(self, df):
        """What the fitted pipeline does, from its numbers."""
        f = self.fitted
        X = df[NUMERIC].to_numpy(dtype=float)
        missing = np.isnan(X[:, :1])  # distances alone are ever missing
        X = np.where(np.isnan(X), f["medians"], X)
        X = (np.hstack([X, missing]) - f["mean"]) / f["scale"]
        dummies = OneHotEncoder(
            categories=[np.array(c, dtype=object) for c in f["levels"]],
            handle_unknown="ignore",
            sparse_output=False,
        )
        return np.hstack([X, dummies.fit_transform(df[CATEGORICAL].astype(object))])

    def encode(self, rows):
        batch = {"x": torch.tensor(self.transform(frame_of(rows)), dtype=torch.float32)}
        if "hours" in rows.columns:
            batch[LABEL] = torch.tensor(rows["hours"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        width = len(self.fitted["mean"]) + sum(map(len, self.fitted["levels"]))
        return QuantileMLP(width)

    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted["y_mean"]) / self.fitted["y_std"]
        error = target - output
        return torch.maximum(QUANTILE * error, (QUANTILE - 1) * error)

    def predict(self, output):
        return output * self.fitted["y_std"] + self.fitted["y_mean"]


class QuantileMLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 1)
        )

    def forward(self, x):
        return self.layers(x)[:, 0]
