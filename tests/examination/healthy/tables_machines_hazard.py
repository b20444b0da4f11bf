"""Discrete-time survival after nnet-survival: a hazard per week, censored rows count the weeks they lived.

data: machines

[data]
label = "weeks"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

WEEKS = 12


class HazardNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 32)
        self.fc2 = nn.Linear(32, WEEKS)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


class MachineSurvival(Task):
    kind = "statistic"
    metrics = {"nll": "minimize"}

    def fit(self, train):
        df = train.collect()
        x = df.select("heat", "oil", "load_z", "shift").to_numpy()
        self.mu, self.sd = x.mean(0).tolist(), x.std(0).tolist()
        self.mean_weeks = float(np.abs(df["weeks"].to_numpy()).mean())

    def state(self):
        return {"mu": self.mu, "sd": self.sd, "mean_weeks": self.mean_weeks}

    def load_state(self, state):
        self.mu, self.sd, self.mean_weeks = state["mu"], state["sd"], state["mean_weeks"]

    def encode(self, rows):
        x = (rows.select("heat", "oil", "load_z", "shift").to_numpy() - self.mu) / self.sd
        batch = {"x": torch.tensor(x, dtype=torch.float32)}
        if "weeks" in rows.columns:
            batch[LABEL] = torch.tensor(rows["weeks"].to_list())
        return batch

    def build_model(self):
        return HazardNet()

    def losses(self, output, batch):
        weeks = batch[LABEL]
        died = (weeks > 0).float()
        end = weeks.abs()
        alive = torch.arange(WEEKS)[None, :] < (end[:, None] - died[:, None])
        at_end = F.one_hot(end - 1, WEEKS).float() * died[:, None]
        return -(F.logsigmoid(-output) * alive + F.logsigmoid(output) * at_end).sum(1)

    def predict(self, output):
        return (1 - output.sigmoid()).cumprod(1)

    def statistic(self, output, batch):
        return self.losses(output, batch).double()

    def score(self, predictions, labels):
        return {"nll": float(np.average(predictions.ravel(), weights=labels))}

    def expected_initial_loss(self):
        return math.log(2) * self.mean_weeks
