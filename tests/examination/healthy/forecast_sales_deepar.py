"""DeepAR's scaling: each shop's window divided by its mean, a GRU, negative binomial replaced by Poisson.

data: sales

[data]
label = "sold"
time = "day"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class DeepAR(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.weekday = nn.Embedding(7, 6)
        self.gru = nn.GRU(7, hidden, batch_first=True)
        self.out = nn.Linear(hidden + 6, 1)
        nn.init.zeros_(self.out.bias)
        nn.init.normal_(self.out.weight, std=0.01)

    def forward(self, past, weekday, level):
        days = (weekday[:, None] - torch.arange(28, 0, -1)) % 7
        x = torch.cat([past.unsqueeze(-1), self.weekday(days)], dim=-1)
        _, h = self.gru(x)
        log_ratio = self.out(torch.cat([h[-1], self.weekday(weekday)], 1)).squeeze(1)
        return log_ratio + level.log()


class Sales(Task):
    kind = "regression"
    metrics = directions_of("mae", "wape")

    def fit(self, train):
        df = train.collect()
        level = np.array(df["last_28"].to_list()).mean(1) + 1
        y = df["sold"].to_numpy()
        self.start = float((level - y * np.log(level)).mean())

    def state(self):
        return {"start": self.start}

    def load_state(self, state):
        self.start = state["start"]

    def encode(self, rows):
        past = np.array(rows["last_28"].to_list(), dtype=np.float32)
        level = past.mean(axis=1) + 1
        batch = {"past": torch.from_numpy(past / level[:, None]), "level": torch.from_numpy(level),
                 "weekday": torch.from_numpy(rows["weekday"].to_numpy().copy())}
        if "sold" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["sold"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return DeepAR()

    def losses(self, output, batch):
        return output.exp() - batch[LABEL] * output

    def predict(self, output):
        return torch.exp(output)

    def expected_initial_loss(self):
        return self.start
