"""What a claim costs: a gamma deviance with a log link, one column that never changes, costs over three decades.

data: claim_costs

[data]
label = "cost"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

TEXTS = ("country", "fuel", "damage")


def gamma_deviance(y, mu):
    return 2 * float(np.mean(y / mu - 1 - np.log(y / mu)))


class ClaimCosts(Task):
    kind = "regression"
    metrics = {"gamma_deviance": "minimize", "mean_error": "minimize"}

    def fit(self, train):
        df = train.collect()
        x = self.numbers(df)
        self.fitted = {
            "levels": {c: df[c].value_counts(sort=True)[c].to_list() for c in TEXTS},
            "mean": x.mean(0).tolist(),
            "std": x.std(0).tolist(),
            "log_mean": float(np.log(df["cost"].mean())),
        }

    @staticmethod
    def numbers(rows):
        return rows.select(pl.col("power"), pl.col("driver_age"), pl.col("car_value").log()).to_numpy().astype(float)

    def encode(self, rows):
        x = (self.numbers(rows) - self.fitted["mean"]) / self.fitted["std"]
        for column in TEXTS:
            levels = self.fitted["levels"][column]
            x = np.hstack([x, np.stack([(rows[column] == v).to_numpy() for v in levels], axis=1)])
        batch = {"x": torch.tensor(x, dtype=torch.float32)}
        if "cost" in rows.columns:
            batch[LABEL] = torch.tensor(rows["cost"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        width = 3 + sum(len(v) for v in self.fitted["levels"].values())
        return Severity(width, self.fitted["log_mean"])

    def losses(self, output, batch):
        log_mu = output
        return batch[LABEL] * torch.exp(-log_mu) + log_mu - batch[LABEL].log() - 1

    def predict(self, output):
        return output.exp()

    def score(self, predictions, labels):
        return {
            "gamma_deviance": gamma_deviance(labels, predictions),
            "mean_error": float(np.abs(predictions - labels).mean()),
        }


class Severity(nn.Module):
    def __init__(self, width, log_mean):
        super().__init__()
        self.linear = nn.Linear(width, 1)
        self.deep = nn.Sequential(nn.Linear(width, 24), nn.SiLU(), nn.Linear(24, 1))
        nn.init.zeros_(self.linear.weight)
        nn.init.constant_(self.linear.bias, log_mean)

    def forward(self, x):
        return (self.linear(x) + self.deep(x))[:, 0]
