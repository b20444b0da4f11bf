"""Tomorrow's spread of a share's return: Gaussian likelihood with a logarithm of the variance.

data: returns

[data]
label = "next_day"
time = "day"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class VolatilityNet(nn.Module):
    def __init__(self, log_variance):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 1))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.constant_(self.net[-1].bias, log_variance)

    def forward(self, sizes):
        return self.net(sizes).squeeze(-1)


class Volatility(Task):
    kind = "statistic"
    metrics = {"nll": "minimize"}

    def fit(self, train):
        df = train.select("last_days", "next_day").collect()
        r = df["next_day"].to_numpy()
        self.variance = float((r**2).mean())

    def state(self):
        return {"variance": self.variance}

    def load_state(self, state):
        self.variance = state["variance"]

    def encode(self, rows):
        r = np.array(rows["last_days"].to_list())
        sizes = np.log(r**2 / self.variance + 0.1)
        batch = {"sizes": torch.tensor(sizes, dtype=torch.float32)}
        if "next_day" in rows.columns:
            batch[LABEL] = torch.tensor(rows["next_day"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return VolatilityNet(math.log(self.variance))

    def losses(self, output, batch):
        return 0.5 * (math.log(2 * math.pi) + output + batch[LABEL] ** 2 * (-output).exp())

    def predict(self, output):
        return (0.5 * output).exp()

    def statistic(self, output, batch):
        return self.losses(output, batch).double()

    def score(self, predictions, labels):
        return {"nll": float(np.average(predictions.ravel(), weights=labels))}

    def expected_initial_loss(self):
        return 0.5 * (math.log(2 * math.pi * self.variance) + 1)
