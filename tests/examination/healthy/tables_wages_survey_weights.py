"""Median hourly wage from a survey whose answers weigh unequally: absolute error on logs, after Mincer.

data: wages

[data]
label = "wage"
ids = ["row_id"]
meta = ["interviewer"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task


class Mincer(nn.Module):
    """A straight line in the textbook's terms, plus what a small network adds."""

    def __init__(self, n):
        super().__init__()
        self.line = nn.Linear(n, 1)
        self.more = nn.Sequential(nn.Linear(n, 24), nn.Softplus(), nn.Linear(24, 1, bias=False))
        nn.init.zeros_(self.line.weight)
        nn.init.zeros_(self.line.bias)
        nn.init.zeros_(self.more[-1].weight)

    def forward(self, terms):
        return (self.line(terms) + self.more(terms)).view(-1)


class Wages(Task):
    kind = "statistic"
    metrics = {"median_ape": "minimize", "mean_ape": "minimize"}
    serves_predictions = True

    @staticmethod
    def terms(df):
        experience = (df["age"] - df["schooling"] - 6).clip(0).to_numpy()
        return np.stack(
            [df["schooling"].to_numpy(), experience, experience**2 / 100, df["woman"].to_numpy(),
             df["tenure"].to_numpy(), df["woman"].to_numpy() * experience],
            axis=1,
        ).astype(float)

    def fit(self, train):
        df = train.collect()
        x, w = self.terms(df), df["weight"].to_numpy()
        mean = np.average(x, axis=0, weights=w)
        std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=w))
        order = df.sort("wage")
        half = np.searchsorted(np.cumsum(order["weight"].to_numpy()), w.sum() / 2)
        self.fitted = {"mean": mean.tolist(), "std": std.tolist(), "median": float(np.log(order["wage"][int(half)])),
                       "mean_weight": float(w.mean())}

    def encode(self, rows):
        x = (self.terms(rows) - self.fitted["mean"]) / self.fitted["std"]
        batch = {"terms": torch.tensor(x, dtype=torch.float32)}
        if "wage" in rows.columns:
            batch[LABEL] = torch.tensor(np.log(rows["wage"].to_numpy()), dtype=torch.float32)
            batch[WEIGHT] = torch.tensor(rows["weight"].to_numpy() / self.fitted["mean_weight"], dtype=torch.float32)
        return batch

    def build_model(self):
        return Mincer(6)

    def losses(self, output, batch):
        return (output + self.fitted["median"] - batch[LABEL]).abs()

    def predict(self, output):
        return (output + self.fitted["median"]).exp()

    def statistic(self, output, batch):
        return (self.predict(output) / batch[LABEL].exp() - 1).abs()

    def score(self, predictions, labels):
        error, weight = predictions.reshape(-1), labels.reshape(-1)
        order = np.argsort(error)
        half = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
        return {
            "median_ape": float(error[order][min(half, len(error) - 1)]),
            "mean_ape": float(np.average(error, weights=weight)),
        }
