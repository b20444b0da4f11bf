"""Fares of yellow taxis (Kaggle's New York taxi fares), in pure polars: haversine, distances to
the airports, the clock on a circle; squared error of the logarithm.

data: yellow_rides

[data]
label = "fare"
time = "pickup_datetime"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""

import math

import polars as pl
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

AIRPORTS = {"jfk": (40.6413, -73.7781), "lga": (40.7769, -73.8740)}
INPUTS = [
    "km", "log_km", "north", "east", "lat", "lon", "to_jfk", "from_jfk", "to_lga", "from_lga",
    "sin_hour", "cos_hour", "rush", "night", "passengers", "no_place",
]  # fmt: skip


def haversine(lat1, lon1, lat2, lon2):
    lat1, lon1, lat2, lon2 = (e.radians() for e in (lat1, lon1, lat2, lon2))
    a = ((lat2 - lat1) / 2).sin() ** 2
    a = a + lat1.cos() * lat2.cos() * ((lon2 - lon1) / 2).sin() ** 2
    return 2 * 6371.0 * a.sqrt().arcsin()


def features():
    pick = pl.col("pickup_lat"), pl.col("pickup_lon")
    drop = pl.col("dropoff_lat"), pl.col("dropoff_lon")
    nowhere = pl.col("pickup_lat") == 0  # no reception
    km = pl.when(nowhere).then(None).otherwise(haversine(*pick, *drop))
    clock = pl.col("pickup_datetime").dt.hour() + pl.col("pickup_datetime").dt.minute() / 60
    workday = pl.col("pickup_datetime").dt.weekday() <= 5
    places = {}
    for name, (lat, lon) in AIRPORTS.items():
        there = pl.lit(lat), pl.lit(lon)
        places[f"to_{name}"] = haversine(*drop, *there).clip(0, 10)
        places[f"from_{name}"] = (
            pl.when(nowhere).then(None).otherwise(haversine(*pick, *there).clip(0, 10))
        )
    return {
        "km": km,
        "log_km": (km + 0.1).log(),
        "north": pl.when(nowhere).then(None).otherwise(drop[0] - pick[0]),
        "east": pl.when(nowhere).then(None).otherwise(drop[1] - pick[1]),
        "lat": drop[0],
        "lon": drop[1],
        **places,
        "sin_hour": (clock * (2 * math.pi / 24)).sin(),
        "cos_hour": (clock * (2 * math.pi / 24)).cos(),
        "rush": ((clock >= 8) & (clock < 19) & workday).cast(pl.Float64),
        "night": ((clock >= 20) | (clock < 6)).cast(pl.Float64),
        "passengers": pl.col("passengers").clip(1, 6).cast(pl.Float64),
        "no_place": nowhere.cast(pl.Float64),
    }


class TaxiFare(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")

    def fit(self, train):
        df = train.collect()
        x = df.select(**features()).select(INPUTS)
        self.fitted = {
            "mean": [float(c.drop_nulls().to_numpy().mean()) for c in x],
            "std": [float(c.drop_nulls().to_numpy().std()) + 1e-6 for c in x],
            "log_fare": float(df["fare"].log().to_numpy().mean()),
        }

    def encode(self, rows):
        x = rows.select(**features()).select(INPUTS)
        x = x.with_columns(
            ((pl.col(name) - mean) / std).fill_null(0.0)
            for name, mean, std in zip(INPUTS, self.fitted["mean"], self.fitted["std"])
        )
        batch = {"x": x.cast(pl.Float32).to_torch()}
        if "fare" in rows.columns:
            batch[LABEL] = rows["fare"].cast(pl.Float32).to_torch()
        return batch

    def build_model(self):
        return FareNet(len(INPUTS), self.fitted["log_fare"])

    def losses(self, output, batch):
        return (output - batch[LABEL].log()) ** 2

    def predict(self, output):
        return output.exp()


class FareNet(nn.Module):
    def __init__(self, width, start, hidden=64):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.outer = nn.Sequential(nn.GELU(), nn.Linear(hidden, 1))
        nn.init.constant_(self.outer[-1].bias, start)

    def forward(self, x):
        return self.outer(self.inner(x)).squeeze(1)
