"""Lives of pumps that are only looked at from time to time: an accelerated failure model with
Weibull lives, whose likelihood is that of the interval between two visits, or of none yet.

data: pump_inspections

[data]
label = "life"
features = ["firm", "maker", "fluid", "load", "speed", "vibration", "visits"]
ids = ["row_id"]
meta = ["visited"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 4e-3 }
schedule = { shape = "cosine" }
"""

import math

import numpy as np
import pandas as pd
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

NUMBERS = ["load", "speed", "log_vibration", "visits"]
CATEGORIES = ["firm", "maker", "fluid"]
NOT_YET = -1.0  # in place of the month of a failure


class WeibullAFT(nn.Module):
    """Logarithms of scale and shape of each pump's life, in months."""

    def __init__(self, n_in, log_scale):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 32), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(32, 2)
        nn.init.zeros_(self.head.weight)
        self.head.bias.data = torch.tensor([log_scale, 0.0])

    def forward(self, x):
        return self.head(self.body(x))


def cumulative_hazard(output, months):
    log_scale, log_shape = output.unbind(dim=1)
    shape = log_shape.clamp(-2, 2).exp()
    return torch.exp(shape * (torch.log(months.clamp(min=0.01)) - log_scale))


def concordance_index(left, right, risk):
    """Share of pairs in order: one failed (at the latest) before the other was last seen well."""
    earlier = right[:, None] <= left[None, :]
    concordant = (risk[:, None] > risk[None, :]) + 0.5 * (risk[:, None] == risk[None, :])
    return float((concordant * earlier).sum() / earlier.sum())


class Pumps(Task):
    kind = "statistic"
    metrics = {"c_index": "maximize", "nll": "minimize"}
    serves_predictions = True

    @property
    def prediction_names(self):
        return ["median_months"]

    def frame(self, rows):
        df = rows.to_pandas()
        df["log_vibration"] = np.log(df["vibration"])
        return df

    def fit(self, train):
        df = self.frame(train.collect())
        left = np.array([life[0] for life in df["life"]])
        self.fitted = {
            "mean": df[NUMBERS].mean().tolist(),
            "std": df[NUMBERS].std().tolist(),
            "names": {c: sorted(df[c].unique()) for c in CATEGORIES},
            "log_scale": float(np.log(left.mean() * 1.5)),
        }

    def encode(self, rows):
        df = self.frame(rows)
        x = ((df[NUMBERS] - self.fitted["mean"]) / self.fitted["std"]).fillna(0.0)
        x["no_load"] = df["load"].isna().astype(float)
        for c in CATEGORIES:
            for name in self.fitted["names"][c]:
                x[f"{c}_{name}"] = (df[c] == name).astype(float)
        batch = {"x": torch.tensor(x.to_numpy(), dtype=torch.float32)}
        if "life" in df:
            life = pd.DataFrame(df["life"].tolist(), columns=["well", "failed"]).astype(float)
            life["failed"] = life["failed"].fillna(NOT_YET)
            batch[LABEL] = torch.tensor(life.to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        names = self.fitted["names"]
        width = len(NUMBERS) + 1 + sum(len(names[c]) for c in CATEGORIES)
        return WeibullAFT(width, self.fitted["log_scale"])

    def losses(self, output, batch):
        well, failed = batch[LABEL].unbind(dim=1)
        open_end = failed == NOT_YET
        hazard = cumulative_hazard(output, well)
        end = cumulative_hazard(output, torch.where(open_end, well + 1, failed))
        share = torch.exp(-hazard) - torch.exp(-end)  # P(fails between the two visits)
        log_share = torch.log(share.clamp(min=1e-10))
        return torch.where(open_end, hazard, -log_share)

    def predict(self, output):
        log_scale, log_shape = output.unbind(dim=1)
        median = log_scale + math.log(math.log(2)) / log_shape.clamp(-2, 2).exp()
        return median.exp().unsqueeze(1)

    def statistic(self, output, batch):
        median = self.predict(output)
        return torch.cat([self.losses(output, batch)[:, None], batch[LABEL], median], dim=1)

    def score(self, predictions, labels):
        nll, well, failed, median = predictions.T
        failed = np.where(failed == NOT_YET, np.inf, failed)
        return {
            "c_index": concordance_index(well, failed, risk=-median),
            "nll": float((nll * labels).sum() / labels.sum()),
        }
