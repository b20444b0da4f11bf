"""House prices: log target, ordinal grades, one-hot of quarters, a Keras-like Sequential with ELU.

data: flat_sales

[data]
label = "price"
ids = ["row_id"]

[training]
steps = 800
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 1e-3, weight_decay = 1e-4 }
"""
import numpy as np
import pandas as pd
import torch
from torch import nn
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMBERS = ["living_area", "rooms", "plot_area", "overall_quality", "age", "years_since_renovation", "kitchen"]
KITCHEN = {"Po": 0, "Fa": 1, "Gd": 2, "Ex": 3}
KINDS = ["flat", "terraced", "detached"]
GARAGES = ["none", "carport", "attached", "detached"]


def features(rows):
    df = pd.DataFrame(rows.to_dict(as_series=False))
    df["living_area"] = np.log(df["living_area"])
    df["plot_area"] = np.log(df["plot_area"].astype(float)).fillna(0.0)
    df["age"] = 2023 - df["year_built"]
    df["years_since_renovation"] = 2023 - df["year_renovated"]
    df["kitchen"] = df["kitchen"].map(KITCHEN)
    return df


class FlatPrices(Task):
    kind = "regression"
    metrics = directions_of("mape", "rmse", "r2")

    def fit(self, train):
        df = features(train.collect())
        numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
        transformer = ColumnTransformer([("numbers", numbers, NUMBERS)]).fit(df)
        scaler = transformer.named_transformers_["numbers"][-1]
        self.fitted = {
            "mean": scaler.mean_.tolist(),
            "scale": scaler.scale_.tolist(),
            "quarters": sorted(df["quarter"].unique()),
            "log_price": float(np.log(df["price"]).mean()),
        }

    def encode(self, rows):
        df = features(rows)
        numbers = (df[NUMBERS].to_numpy(float) - self.fitted["mean"]) / self.fitted["scale"]
        dummies = [df["quarter"] == q for q in self.fitted["quarters"]]
        dummies += [df["kind"] == k for k in KINDS] + [df["garage"] == g for g in GARAGES]
        X = np.hstack([numbers, np.stack(dummies, 1)])
        batch = {"X": torch.tensor(X, dtype=torch.float32)}
        if "price" in df:
            batch[LABEL] = torch.tensor(df["price"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        n = len(NUMBERS) + len(self.fitted["quarters"]) + len(KINDS) + len(GARAGES)
        model = nn.Sequential()
        model.add_module("dense", nn.Linear(n, 64))
        model.add_module("elu", nn.ELU())
        model.add_module("dense_1", nn.Linear(64, 32))
        model.add_module("elu_1", nn.ELU())
        model.add_module("dense_2", nn.Linear(32, 1))
        return Named(model)

    def losses(self, output, batch):
        target = torch.log(batch[LABEL]) - self.fitted["log_price"]
        return nn.functional.mse_loss(output.squeeze(-1), target, reduction="none")

    def predict(self, output):
        return torch.exp(output.squeeze(-1) + self.fitted["log_price"])


class Named(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, X):
        return self.model(X)
