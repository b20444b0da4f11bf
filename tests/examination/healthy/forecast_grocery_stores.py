"""Tomorrow's takings of 45 shops with one network: a vector per shop, calendar, promotions, last week's sales.

data: grocery_days

[data]
label = "sales"
group = "store"
time = "date"
time_is_feature = true
features = ["store", "store_type", "competition_distance", "promo", "holiday", "sales_lag_7", "sales_mean_28"]
ids = ["row_id"]

[training]
steps = 700
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CONT = ["competition_distance", "sales_lag_7", "sales_mean_28"]


class StoreSales(Task):
    kind = "regression"
    metrics = directions_of("mape", "mae", "rmse")

    def continuous(self, rows):
        return np.stack([np.log1p(rows[c].cast(float).to_numpy()) for c in CONT], axis=1)

    def fit(self, train):
        df = train.collect()
        x, y = self.continuous(df), np.log1p(df["sales"].to_numpy())
        self.fitted = {
            "stores": sorted(df["store"].unique().to_list()),
            "types": sorted(df["store_type"].unique().to_list()),
            "mean": np.nanmean(x, axis=0).tolist(),
            "std": np.nanstd(x, axis=0).tolist(),
            "y": [float(y.mean()), float(y.std())],
        }

    def encode(self, rows):
        stores = {s: i + 1 for i, s in enumerate(self.fitted["stores"])}
        types = {s: i + 1 for i, s in enumerate(self.fitted["types"])}
        x = np.nan_to_num((self.continuous(rows) - self.fitted["mean"]) / self.fitted["std"])
        was_closed = (rows["sales_lag_7"] == 0).to_numpy()
        x = np.column_stack([x, rows["promo"].to_numpy(), rows["holiday"].to_numpy(), was_closed])
        batch = {
            "store": torch.tensor([stores.get(s, 0) for s in rows["store"]]),
            "store_type": torch.tensor([types.get(s, 0) for s in rows["store_type"]]),
            "weekday": torch.tensor((rows["date"].dt.weekday() - 1).to_list()),
            "month": torch.tensor((rows["date"].dt.month() - 1).to_list()),
            "x": torch.tensor(x, dtype=torch.float32),
        }
        if "sales" in rows.columns:
            batch[LABEL] = torch.tensor(rows["sales"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return SalesNet(len(self.fitted["stores"]) + 1, len(self.fitted["types"]) + 1)

    def losses(self, output, batch):
        mean, std = self.fitted["y"]
        return (output - (torch.log1p(batch[LABEL]) - mean) / std).square()

    def predict(self, output):
        mean, std = self.fitted["y"]
        return torch.expm1(output * std + mean)


class SalesNet(nn.Module):
    def __init__(self, n_stores, n_types):
        super().__init__()
        self.store = nn.Embedding(n_stores, 10)
        self.store_type = nn.Embedding(n_types, 2)
        self.weekday = nn.Embedding(7, 4)
        self.month = nn.Embedding(12, 4)
        self.head = nn.Sequential(nn.Linear(10 + 2 + 4 + 4 + 6, 100), nn.ReLU(), nn.Dropout(0.05), nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 1))

    def forward(self, store, store_type, weekday, month, x):
        h = torch.cat([self.store(store), self.store_type(store_type), self.weekday(weekday), self.month(month), x], dim=1)
        return self.head(h).squeeze(1)
