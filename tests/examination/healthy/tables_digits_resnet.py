"""Tabular ResNet (Gorishniy et al.) over the pixels as plain columns, RobustScaler-like.

data: digit_columns

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
normalization = { batch_norm = "sync" }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Block(nn.Module):
    def __init__(self, d, hidden, p=0.1):
        super().__init__()
        self.norm = nn.BatchNorm1d(d)
        self.lin1, self.lin2 = nn.Linear(d, hidden), nn.Linear(hidden, d)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        z = self.norm(x)
        z = self.drop(torch.relu(self.lin1(z)))
        return x + self.lin2(z)


class TabResNet(nn.Module):
    def __init__(self, n_in, d=64, n_blocks=2):
        super().__init__()
        self.first = nn.Linear(n_in, d)
        self.blocks = nn.ModuleList(Block(d, 2 * d) for _ in range(n_blocks))
        self.head = nn.Sequential(nn.BatchNorm1d(d), nn.ReLU(), nn.Linear(d, 10))

    def forward(self, **inputs):
        x = self.first(inputs["pixels"])
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class DigitTable(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        self.order = sorted(self.columns.features)
        p = train.select(self.order).collect().to_numpy()
        self.center = [float(v) for v in p.mean(axis=0)]
        self.width = [float(max(v, 1.0)) for v in p.std(axis=0)]

    def state(self):
        return {"order": self.order, "center": self.center, "width": self.width}

    def load_state(self, state):
        self.order, self.center, self.width = (state[k] for k in ("order", "center", "width"))

    def encode(self, rows):
        p = torch.tensor(rows.select(self.order).to_numpy(), dtype=torch.float32)
        batch = {"pixels": p.sub(torch.tensor(self.center)).div(torch.tensor(self.width))}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor(rows[self.columns.label].to_list(), dtype=torch.int64)
        return batch

    def build_model(self):
        return TabResNet(len(self.order))

    def losses(self, output, batch):
        return -output.log_softmax(dim=1).gather(1, batch[LABEL].unsqueeze(1)).squeeze(1)

    def predict(self, output):
        return output.softmax(dim=1)

    def expected_initial_loss(self):
        return math.log(10)
