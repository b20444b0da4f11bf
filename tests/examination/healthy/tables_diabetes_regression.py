"""Target standardised in training and given back in its own unit.

data: diabetes

[data]
label = "progression"
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Progression(Task):
    kind = "regression"
    metrics = directions_of("rmse", "r2")

    def fit(self, train):
        data = train.collect()
        self.names = sorted(self.columns.features)
        X, y = data.select(self.names).to_numpy(), data[self.columns.label].to_numpy()
        self.s = dict(m=X.mean(0).tolist(), s=X.std(0).tolist(), ym=float(y.mean()), ys=float(y.std()))

    def state(self):
        return {"names": self.names, **self.s}

    def load_state(self, state):
        self.s = dict(state)
        self.names = self.s.pop("names")

    def encode(self, rows):
        X = (rows.select(self.names).to_numpy() - np.array(self.s["m"])) / np.array(self.s["s"])
        out = {"x": torch.as_tensor(X, dtype=torch.float32)}
        if self.columns.label in rows.columns:
            out[LABEL] = torch.as_tensor(rows[self.columns.label].to_numpy().copy(), dtype=torch.float32)
        return out

    def build_model(self):
        return Regressor(len(self.names))

    def losses(self, output, batch):
        y = (batch[LABEL] - self.s["ym"]) / self.s["ys"]
        return (output - y) ** 2

    def predict(self, output):
        return output * self.s["ys"] + self.s["ym"]

    def expected_initial_loss(self):
        return 1.0


class Regressor(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.l1 = nn.Linear(d, 32)
        self.l2 = nn.Linear(32, 1)

    def forward(self, x):
        return self.l2(torch.relu(self.l1(x)))[:, 0]
