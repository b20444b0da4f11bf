"""TabM in small: eight networks in one that share their weights, each with a loss of its own; RMSNorm in between.

data: concretes

[data]
label = "strength"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3, weight_decay = 0.02 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MEMBERS = 8


class SharedLinear(nn.Module):
    """BatchEnsemble: one matrix for all members, a scale before and behind it for each."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_in, d_out))
        self.r = nn.Parameter(torch.randint(0, 2, (MEMBERS, d_in)) * 2.0 - 1.0)
        self.s = nn.Parameter(torch.ones(MEMBERS, d_out))
        self.bias = nn.Parameter(torch.zeros(MEMBERS, d_out))
        nn.init.kaiming_normal_(self.weight, mode="fan_out")

    def forward(self, x):
        return torch.einsum("bki,io->bko", x * self.r, self.weight) * self.s + self.bias


class TabM(nn.Module):
    def __init__(self, d_in, width=48):
        super().__init__()
        self.first, self.second = SharedLinear(d_in, width), SharedLinear(width, width)
        self.norm = nn.RMSNorm(width)
        self.heads = nn.Parameter(torch.randn(MEMBERS, width) / width**0.5)
        self.offset = nn.Parameter(torch.zeros(MEMBERS))

    def forward(self, x):
        h = x[:, None, :].expand(-1, MEMBERS, -1)
        h = self.norm(self.first(h).relu())
        h = self.second(h).relu()
        return torch.einsum("bkw,kw->bk", h, self.heads) + self.offset


class Concrete(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")
    names = ["cement", "slag", "ash", "water", "plasticizer", "coarse", "age_days"]

    def fit(self, train):
        df = train.collect()
        quantiles = np.quantile(df.select(self.names).to_numpy().astype(float), np.linspace(0, 1, 50), axis=0)
        y = df["strength"].to_numpy()
        self.fitted = {"knots": quantiles.T.tolist(), "y": [float(y.mean()), float(y.std())]}

    def encode(self, rows):
        columns = []
        for name, knots in zip(self.names, self.fitted["knots"]):
            columns.append(np.interp(rows[name].to_numpy(), knots, np.linspace(-1.7, 1.7, 50)))
        batch = {"x": torch.tensor(np.stack(columns, axis=1), dtype=torch.float32)}
        if "strength" in rows.columns:
            batch[LABEL] = torch.tensor(rows["strength"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return TabM(len(self.names))

    def losses(self, output, batch):
        mean, std = self.fitted["y"]
        y = (batch[LABEL] - mean) / std
        return (output - y[:, None]).square().mean(dim=1)

    def predict(self, output):
        mean, std = self.fitted["y"]
        return output.mean(dim=1) * std + mean
