"""Turbidity of brooks over the next fifteen hours: an LSTM and a Student distribution.

Loss -0.15 a step, mean error 0.15; 0.37 for the last value.

data: brook_turbidity

[data]
label = "log_ntu_ahead"
time = "now"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 4e-3 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import StudentT

from perennial.engine.task import LABEL, Task

PAST, AHEAD = 24, 5


class StudentLSTM(nn.Module):
    """Per step: degrees of freedom, place and scale, before their activations."""

    def __init__(self, n_brooks, hidden=32):
        super().__init__()
        self.brook = nn.Embedding(n_brooks, 4)
        self.encoder = nn.LSTM(3, hidden, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(hidden + 4 + AHEAD + 1, 64), nn.ReLU(), nn.Linear(64, 3 * AHEAD)
        )

    def forward(self, past, rain_ahead, brook, last):
        _, (h, _) = self.encoder(past)
        x = torch.cat([h[-1], self.brook(brook), rain_ahead, last], dim=1)
        raw = self.head(x).view(-1, AHEAD, 3)
        return torch.stack([raw[..., 0], raw[..., 1] + last, raw[..., 2]], dim=2)


class BrookTurbidity(Task):
    kind = "statistic"
    metrics = {"nll": "minimize", "mae": "minimize"}
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        past = np.array(df["log_ntu_past"].to_list(), dtype=float)
        self.fitted = {
            "mean": float(np.nanmean(past)),
            "std": float(np.nanstd(past)),
            "brooks": sorted(df["brook"].unique()),
        }

    def encode(self, rows):
        past = np.array(rows["log_ntu_past"].to_list(), dtype=float)
        past = (past - self.fitted["mean"]) / self.fitted["std"]
        seen = ~np.isnan(past)
        newest = np.maximum.accumulate(np.where(seen, np.arange(PAST), 0), axis=1)
        filled = np.nan_to_num(np.take_along_axis(past, newest, axis=1))
        rain = np.log1p(np.array(rows["rain_past"].to_list()))
        ahead = np.log1p(np.array(rows["rain_ahead"].to_list()))
        brooks = {v: k for k, v in enumerate(self.fitted["brooks"], start=1)}
        batch = {
            "past": torch.tensor(np.stack([filled, seen, rain], axis=2), dtype=torch.float32),
            "rain_ahead": torch.tensor(ahead, dtype=torch.float32),
            "brook": torch.tensor([brooks.get(v, 0) for v in rows["brook"]]),
            "last": torch.tensor(filled[:, -1:], dtype=torch.float32),
        }
        if "log_ntu_ahead" in rows.columns:
            batch[LABEL] = torch.tensor(rows["log_ntu_ahead"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return StudentLSTM(len(self.fitted["brooks"]) + 1)

    def distribution(self, output):
        df, loc, scale = output.unbind(dim=2)
        return StudentT(2 + F.softplus(df), loc, F.softplus(scale) + 1e-3)

    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted["mean"]) / self.fitted["std"]
        return -self.distribution(output).log_prob(target).mean(dim=1)

    def predict(self, output):
        return output[..., 1] * self.fitted["std"] + self.fitted["mean"]

    def statistic(self, output, batch):
        off = (self.predict(output) - batch[LABEL]).abs().mean(dim=1)
        return torch.stack([self.losses(output, batch), off], dim=1).double()

    def score(self, predictions, labels):
        nll, mae = np.average(predictions, axis=0, weights=labels)
        return {"nll": float(nll), "mae": float(mae)}
