"""Energy for heating a house, as a scikit-learn pipeline would have it: imputer, scaler, one-hot.

data: heating_bills

[data]
label = "kwh"
group = "house"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMERIC = ["built", "floor_area", "people", "degree_days", "advance_eur"]
CATEGORICAL = ["insulation", "glazing", "system"]


class HeatingEnergy(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def fit(self, train):
        df = train.collect()
        x = df.select(NUMERIC).to_numpy().astype(float)
        median = np.nanmedian(x, axis=0)
        x = np.where(np.isnan(x), median, x)
        y = np.log(df["kwh"].to_numpy())
        self.fitted = {
            "median": median.tolist(),
            "mean": x.mean(axis=0).tolist(),
            "scale": x.std(axis=0).tolist(),
            "categories": [sorted(df[c].drop_nulls().unique()) for c in CATEGORICAL],
            "target": [float(y.mean()), float(y.std())],
        }

    def transform(self, df):
        """SimpleImputer, StandardScaler and OneHotEncoder(handle_unknown="ignore")."""
        x = df.select(NUMERIC).to_numpy().astype(float)
        missing = np.isnan(x)
        x = np.where(missing, self.fitted["median"], x)
        x = (x - self.fitted["mean"]) / self.fitted["scale"]
        columns = [x, missing, df["thermostat"].to_numpy()[:, None]]
        for name, known in zip(CATEGORICAL, self.fitted["categories"]):
            columns.append(np.array([[v == k for k in known] for v in df[name]]))
        return np.concatenate(columns, axis=1).astype(np.float32)

    def encode(self, rows):
        batch = {"x": torch.from_numpy(self.transform(rows))}
        if "kwh" in rows.columns:
            batch[LABEL] = torch.tensor(rows["kwh"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        width = 2 * len(NUMERIC) + 1 + sum(len(c) for c in self.fitted["categories"])
        return MLPRegressor(width, [64, 32])

    def losses(self, output, batch):
        mean, std = self.fitted["target"]
        target = (torch.log(batch[LABEL]) - mean) / std
        return nn.functional.mse_loss(output, target, reduction="none")

    def predict(self, output):
        mean, std = self.fitted["target"]
        return torch.exp(output * std + mean)

    def expected_initial_loss(self):
        return 1.0


class MLPRegressor(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        sizes = [width, *hidden]
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)
        self.out = nn.Linear(sizes[-1], 1)
        nn.init.normal_(self.out.weight, std=0.01)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        return self.out(self.hidden(x)).squeeze(-1)
