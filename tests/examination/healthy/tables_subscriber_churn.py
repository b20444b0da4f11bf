"""Churn from usage: a ColumnTransformer written by hand (median, scaling, one-hot), a small MLP, positives weighed.

data: subscribers

[data]
label = "churned"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 1e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMERIC = ["tenure_months", "monthly_price", "minutes_30d", "sessions_30d", "days_since_last_play", "support_calls", "devices", "age"]
CATEGORICAL = ["plan", "country", "payment"]
SKEWED = {"minutes_30d", "sessions_30d", "tenure_months"}


class ChurnPrediction(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc")

    def number(self, rows, name):
        values = rows[name].cast(float).to_numpy()
        return np.log1p(values) if name in SKEWED else values

    def fit(self, train):
        df = train.collect()
        X = np.stack([self.number(df, c) for c in NUMERIC], axis=1)
        y = df["churned"].to_numpy()
        self.fitted = {
            "median": np.nanmedian(X, axis=0).tolist(),
            "mean": np.nanmean(X, axis=0).tolist(),
            "std": np.nanstd(X, axis=0).tolist(),
            "categories": {c: sorted(df[c].drop_nulls().unique().to_list()) for c in CATEGORICAL},
            "pos_weight": float((y == 0).sum() / (y == 1).sum()),
        }

    def encode(self, rows):
        X = np.stack([self.number(rows, c) for c in NUMERIC], axis=1)
        X = np.where(np.isnan(X), self.fitted["median"], X)
        X = (X - self.fitted["mean"]) / self.fitted["std"]
        one_hot = [(rows[c] == value).fill_null(False).to_numpy() for c in CATEGORICAL for value in self.fitted["categories"][c]]
        X = np.concatenate([X, np.stack(one_hot, axis=1)], axis=1)
        batch = {"x": torch.tensor(X, dtype=torch.float32)}
        if "churned" in rows.columns:
            batch[LABEL] = torch.tensor(rows["churned"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        n_features = len(NUMERIC) + sum(len(values) for values in self.fitted["categories"].values())
        return MLP(n_features)

    def losses(self, output, batch):
        pos_weight = torch.tensor(self.fitted["pos_weight"])
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none", pos_weight=pos_weight)


class MLP(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_features, 64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(32, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(1)
