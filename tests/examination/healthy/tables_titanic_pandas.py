"""The ship: missing ages by the median with a flag, everything in pandas.

data: passengers

[data]
label = "Survived"
ids = ["PassengerId"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import math

import pandas as pd
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def preprocess(df: pd.DataFrame, median_age: float, fare_max: float) -> pd.DataFrame:
    out = pd.DataFrame(index=df.index)
    out["age_missing"] = df["Age"].isna().astype("float32")
    out["age"] = df["Age"].astype("float64").fillna(median_age) / 80
    out["fare"] = df["Fare"].clip(upper=fare_max) / fare_max
    out["female"] = (df["Sex"] == "female").astype("float32")
    for c in (1, 2, 3):
        out[f"class_{c}"] = (df["Pclass"] == c).astype("float32")
    for port in "SCQ":
        out[f"from_{port}"] = (df["Embarked"] == port).astype("float32")
    out["siblings"] = df["SibSp"] / 4
    return out


class Titanic(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        df = train.collect().to_pandas()
        self.median_age = float(df["Age"].median())
        self.fare_max = float(df["Fare"].quantile(0.99))

    def state(self):
        return {"median_age": self.median_age, "fare_max": self.fare_max}

    def load_state(self, state):
        self.median_age, self.fare_max = state["median_age"], state["fare_max"]

    def encode(self, rows):
        df = rows.to_pandas()
        x = preprocess(df, self.median_age, self.fare_max)
        batch = {"x": torch.tensor(x.values.astype("float32"))}
        if "Survived" in df.columns:
            batch[LABEL] = torch.tensor(df["Survived"].values.astype("float32"))
        return batch

    def build_model(self):
        return TitanicNet()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return math.log(2)


class TitanicNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(11, 32)
        self.fc2 = nn.Linear(32, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.out(x)[:, 0]
