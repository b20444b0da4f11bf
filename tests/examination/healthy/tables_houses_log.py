"""Prices by their logarithm (the competition's RMSLE), given back in dollars.

data: houses

[data]
label = "SalePrice"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


@dataclass
class Prep:
    mean: list = field(default_factory=list)
    std: list = field(default_factory=list)
    hoods: list = field(default_factory=list)
    y_mean: float = 0.0
    y_std: float = 1.0


NUM = ["GrLivArea", "OverallQual", "YearBuilt"]


class HousePrices(Task):
    kind = "regression"
    metrics = directions_of("mae", "r2") | {"rmsle": "minimize"}

    def fit(self, train):
        df = train.collect()
        X = self.numeric(df)
        y = np.log1p(df["SalePrice"].to_numpy())
        self.prep = Prep(X.mean(0).tolist(), X.std(0).tolist(), sorted(df["Neighborhood"].unique()), float(y.mean()), float(y.std()))

    def numeric(self, df):
        X = df.select(NUM).to_numpy().astype(float)
        X[:, 0] = np.log(X[:, 0])
        return X

    def state(self):
        return asdict(self.prep)

    def load_state(self, state):
        self.prep = Prep(**state)

    def encode(self, rows):
        X = (self.numeric(rows) - self.prep.mean) / self.prep.std
        hood = np.array([[h == k for k in self.prep.hoods] for h in rows["Neighborhood"]], dtype=float)
        batch = {"x": torch.tensor(np.c_[X, hood], dtype=torch.float32)}
        if "SalePrice" in rows.columns:
            batch[LABEL] = torch.tensor(rows["SalePrice"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Net(3 + len(self.prep.hoods))

    def losses(self, output, batch):
        target = (torch.log1p(batch[LABEL]) - self.prep.y_mean) / self.prep.y_std
        return nn.functional.mse_loss(output, target, reduction="none")

    def predict(self, output):
        return torch.expm1(output * self.prep.y_std + self.prep.y_mean)

    def score(self, predictions, labels):
        error = np.log1p(np.maximum(predictions, 0)) - np.log1p(labels)
        return super().score(predictions, labels) | {"rmsle": float(np.sqrt(np.mean(error**2)))}

    def expected_initial_loss(self):
        return 1.0


class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a = nn.Linear(n, 64)
        self.b = nn.Linear(64, 64)
        self.c = nn.Linear(64, 1)

    def forward(self, x):
        h = nn.functional.relu(self.a(x))
        h = h + nn.functional.relu(self.b(h))
        return self.c(h).squeeze(-1)
