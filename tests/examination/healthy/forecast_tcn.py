"""A temporal convolutional network: dilated, causal, residual; predicts the change from the last hour.

data: temperature

[data]
label = "target"
time = "at"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class CausalConv1d(nn.Module):
    def __init__(self, cin, cout, k, dilation):
        super().__init__()
        self.left = (k - 1) * dilation
        self.conv = nn.Conv1d(cin, cout, k, dilation=dilation)

    def forward(self, x):
        return self.conv(F.pad(x, (self.left, 0)))


class TCN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.inp = nn.Conv1d(1, width, 1)
        self.blocks = nn.ModuleList([CausalConv1d(width, width, 3, 2**i) for i in range(4)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + F.relu(block(h))
        return self.out(h[:, :, -1])[:, 0]


class HourlyChange(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae")

    def fit(self, train):
        df = train.select("history", "target").collect()
        change = df["target"] - df["history"].list.last()
        self.step = float(change.std())
        self.first = float((change**2).mean()) / self.step**2
        self.mu, self.sd = float(df["target"].mean()), float(df["target"].std())

    def state(self):
        return {"step": self.step, "first": self.first, "mu": self.mu, "sd": self.sd}

    def load_state(self, state):
        self.__dict__.update({k: state[k] for k in ("step", "first", "mu", "sd")})

    def encode(self, rows):
        h = torch.tensor(rows["history"].to_list(), dtype=torch.float32)
        batch = {"x": ((h - h[:, -1:]) / (3 * self.step)).unsqueeze(1)}
        last = h[:, -1]
        if "target" in rows.columns:
            y = torch.tensor(rows["target"].to_list(), dtype=torch.float32)
            batch[LABEL] = (y - last) / self.step
        return batch

    def build_model(self):
        return TCN()

    def losses(self, output, batch):
        return (output - batch[LABEL]) ** 2

    def predict(self, output):
        return output

    def expected_initial_loss(self):
        return self.first
