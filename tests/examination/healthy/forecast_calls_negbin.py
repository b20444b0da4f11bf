"""Calls of the next half hour: a negative binomial whose scatter is learned, lazily built layers, a calendar of sines.

data: hotline_calls

[data]
label = "calls"
features = ["last_day", "half_hour", "weekday"]
time = "slot"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(48), nn.ELU(), nn.LazyLinear(24), nn.ELU(), nn.LazyLinear(1))
        self.log_r = nn.Parameter(torch.tensor(1.0))

    def forward(self, history, calendar, level):
        x = torch.cat([history, calendar], dim=1)
        log_mu = self.layers(x)[:, 0] + level
        return torch.stack([log_mu, self.log_r.expand_as(log_mu)], dim=1)


class HotlineCalls(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"nll": "minimize", "mae": "minimize"}

    def fit(self, train):
        calls = train.select("calls").collect()["calls"].to_numpy()
        self.fitted = {"mean": float(calls.mean())}

    def encode(self, rows):
        counts = np.array(rows["last_day"].to_list(), dtype=np.float32)
        level = np.log1p(counts.mean(axis=1))
        angle = 2 * math.pi * rows["half_hour"].to_numpy()[:, None] / 48 * np.array([1, 2])
        weekend = (rows["weekday"].to_numpy() > 5).astype(float)
        calendar = np.hstack([np.sin(angle), np.cos(angle), weekend[:, None]])
        batch = {
            "history": torch.from_numpy(np.log1p(counts) - level[:, None]),
            "calendar": torch.from_numpy(calendar).float(),
            "level": torch.from_numpy(level),
        }
        if "calls" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["calls"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        model = CallNet()
        with torch.no_grad():  # materialises the lazy layers
            model(torch.zeros(1, 48), torch.zeros(1, 5), torch.zeros(1))
        return model

    def losses(self, output, batch):
        mu, r = output.exp().unbind(dim=1)
        law = torch.distributions.NegativeBinomial(r, logits=(mu / r).log(), validate_args=False)
        return -law.log_prob(batch[LABEL])

    def predict(self, output):
        return output[:, 0].exp()

    def statistic(self, output, batch):
        error = (self.predict(output) - batch[LABEL]).abs()
        return torch.stack([self.losses(output, batch), error], dim=1)

    def score(self, predictions, labels):
        nll, mae = np.average(predictions, axis=0, weights=labels)
        return {"nll": float(nll), "mae": float(mae)}
