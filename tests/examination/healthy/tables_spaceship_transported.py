"""Who is transported from the ship (Kaggle's Spaceship Titanic): a starter notebook's features in
pandas, the cabin taken apart, bills as logarithms, a small network of ReLUs.

data: ship_passengers

[data]
label = "transported"
group = "party"
ids = ["row_id", "passenger_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
"""

import numpy as np
import pandas as pd
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

BILLS = ["room", "food", "shop", "spa", "deck"]
PLANETS = ["Earth", "Europa", "Mars"]
DECKS = list("ABCDEFG")


def preprocess(df):
    out = pd.DataFrame(index=df.index)
    asleep = df["cryo_sleep"].map({True: 1.0, False: 0.0}).astype(float)
    bills = df[BILLS].astype(float)
    out["no_bill"] = (bills.fillna(0.0).sum(axis=1) == 0).astype(float)
    # who sleeps spends nothing, so a bill tells where the flag is missing
    out["asleep"] = asleep.fillna(out["no_bill"])
    for name in BILLS:
        out[name] = np.log1p(bills[name].fillna(0.0))
    out["age"] = df["age"].astype(float)
    out["age_missing"] = df["age"].isna().astype(float)
    out["child"] = (df["age"] < 13).astype(float)
    for planet in PLANETS:
        out[f"from_{planet}"] = (df["home_planet"] == planet).astype(float)
    cabin = df["cabin"].str.split("/", expand=True).reindex(columns=range(3))
    for deck in DECKS:
        out[f"on_{deck}"] = (cabin[0] == deck).astype(float)
    out["starboard"] = cabin[2].map({"S": 1.0, "P": -1.0}).astype(float).fillna(0.0)
    out["vip"] = df["vip"].astype(float)
    return out


class Transported(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc", "accuracy")

    def fit(self, train):
        X = preprocess(train.collect().to_pandas())
        self.fitted = {
            "median_age": float(X["age"].median()),
            "mean": X.mean().tolist(),
            "std": (X.std() + 1e-6).tolist(),
        }

    def encode(self, rows):
        df = rows.to_pandas()
        X = preprocess(df)
        X["age"] = X["age"].fillna(self.fitted["median_age"])
        X = (X.to_numpy() - np.array(self.fitted["mean"])) / np.array(self.fitted["std"])
        batch = {"x": torch.tensor(X, dtype=torch.float32)}
        if "transported" in df:
            batch[LABEL] = torch.tensor(df["transported"].to_numpy(dtype=np.float32))
        return batch

    def build_model(self):
        return FeedForward(len(self.fitted["mean"]))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], reduction="none"
        )

    def predict(self, output):
        return torch.sigmoid(output)


class FeedForward(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_features, 48),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(48, 24),
            nn.ReLU(),
            nn.Linear(24, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)
