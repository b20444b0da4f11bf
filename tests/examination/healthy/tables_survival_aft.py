"""Accelerated failure time: exponential likelihood, a negative label is a patient who left.

data: trials

[data]
label = "months"
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


def concordance(risk, time, event):
    order = (time[:, None] < time[None, :]) & event[:, None]
    better = (risk[:, None] > risk[None, :]) + 0.5 * (risk[:, None] == risk[None, :])
    return float((better * order).sum() / order.sum())


class Survival(Task):
    kind = "regression"
    metrics = {"concordance": "maximize"}

    def fit(self, train):
        y = train.select("months").collect()["months"].to_numpy()
        self.rate = float((y > 0).sum() / np.abs(y).sum())
        self.share = float((y > 0).mean())

    def state(self):
        return {"rate": self.rate, "share": self.share}

    def load_state(self, state):
        self.rate, self.share = state["rate"], state["share"]

    def encode(self, rows):
        x = rows.select(sorted(self.columns.features)).to_numpy().astype("float32")
        out = {"covariates": torch.from_numpy(x)}
        if "months" in rows.columns:
            out[LABEL] = torch.from_numpy(rows["months"].to_numpy().astype("float32"))
        return out

    def build_model(self):
        return Hazard(len(self.columns.features), math.log(self.rate))

    def losses(self, output, batch):
        time, event = batch[LABEL].abs(), (batch[LABEL] > 0).float()
        return time * output.exp() - event * output

    def predict(self, output):
        return math.log(2) / output.exp()

    def score(self, predictions, labels):
        return {"concordance": concordance(-predictions, np.abs(labels), labels > 0)}

    def expected_initial_loss(self):
        return self.share - self.share * math.log(self.rate)


class Hazard(nn.Module):
    def __init__(self, d, log_rate):
        super().__init__()
        self.hidden = nn.Linear(d, 32)
        self.out = nn.Linear(32, 1)
        nn.init.normal_(self.out.weight, std=0.01)
        nn.init.constant_(self.out.bias, log_rate)

    def forward(self, covariates):
        return self.out(torch.tanh(self.hidden(covariates))).squeeze(1)
