"""Quantiles of the next eight hours from a GRU over two days.

data: town_load

[data]
label = "ahead"
time = "last_hour"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

QUANTILES = (0.1, 0.5, 0.9)


def pinball(error):
    q = torch.tensor(QUANTILES)
    return torch.maximum(q * error, (q - 1) * error)


class QuantileGRU(nn.Module):
    def __init__(self, hidden=32, horizon=8):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, horizon * 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, seen):
        h, _ = self.rnn(seen.unsqueeze(-1))
        return self.head(h[:, -1]).view(-1, 8, 3)


class LoadQuantiles(Task):
    kind = "statistic"
    metrics = {"pinball": "minimize"}

    def fit(self, train):
        df = train.select("seen", "ahead").collect()
        seen, ahead = np.array(df["seen"].to_list()), np.array(df["ahead"].to_list())
        self.mean, self.std = float(seen.mean()), float(seen.std())
        z = torch.tensor((ahead - self.mean) / self.std, dtype=torch.float32)
        self.start = float(pinball(z.unsqueeze(-1)).mean())

    def state(self):
        return {"mean": self.mean, "std": self.std, "start": self.start}

    def load_state(self, state):
        self.mean, self.std, self.start = state["mean"], state["std"], state["start"]

    def encode(self, rows):
        seen = np.array(rows["seen"].to_list())
        out = {"seen": torch.tensor((seen - self.mean) / self.std, dtype=torch.float32)}
        if "ahead" in rows.columns:
            ahead = np.array(rows["ahead"].to_list())
            out[LABEL] = torch.tensor((ahead - self.mean) / self.std, dtype=torch.float32)
        return out

    def build_model(self):
        return QuantileGRU()

    def losses(self, output, batch):
        return pinball(batch[LABEL].unsqueeze(-1) - output).mean((1, 2))

    def predict(self, output):
        return (output * self.std + self.mean).flatten(1)

    def statistic(self, output, batch):
        return (self.losses(output, batch) * self.std).double()

    def score(self, predictions, labels):
        return {"pinball": float(np.average(predictions.ravel(), weights=labels))}

    def expected_initial_loss(self):
        return self.start
