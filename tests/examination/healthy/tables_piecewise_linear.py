"""Numbers as piecewise-linear codes over their quantiles (Gorishniy et al.), then a plain MLP.

data: diabetes

[data]
label = "progression"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 1e-3, weight_decay = 0.1 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

N_BINS = 6


class PiecewiseLinear(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")

    def fit(self, train):
        df = train.collect()
        self.edges = []
        for name in sorted(self.columns.features):
            # sex has two values: its quantiles fall together, and one bin is left
            edges = np.unique(np.quantile(df[name].to_numpy(), np.linspace(0, 1, N_BINS + 1)))
            self.edges.append([name, edges.tolist()])
        y = df["progression"].to_numpy()
        self.y_mean, self.y_std = float(y.mean()), float(y.std())

    def state(self):
        return {"edges": self.edges, "y_mean": self.y_mean, "y_std": self.y_std}

    def load_state(self, state):
        self.edges, self.y_mean, self.y_std = state["edges"], state["y_mean"], state["y_std"]

    def encode(self, rows):
        codes = []
        for name, edges in self.edges:
            left, right = np.array(edges[:-1]), np.array(edges[1:])
            part = (rows[name].to_numpy()[:, None] - left) / (right - left)
            # the first and the last bin go on beyond what was seen
            low = np.where(np.arange(len(left)) == 0, -np.inf, 0.0)
            high = np.where(np.arange(len(left)) == len(left) - 1, np.inf, 1.0)
            codes.append(np.clip(part, low, high))
        batch = {"codes": torch.tensor(np.concatenate(codes, axis=1), dtype=torch.float32)}
        if "progression" in rows.columns:
            batch[LABEL] = torch.tensor(rows["progression"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return CodesMLP(sum(len(edges) - 1 for _, edges in self.edges))

    def losses(self, output, batch):
        return ((batch[LABEL] - self.y_mean) / self.y_std - output) ** 2

    def predict(self, output):
        return self.y_mean + self.y_std * output

    def expected_initial_loss(self):
        return 1.0


class CodesMLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 1))
        nn.init.normal_(self.net[-1].weight, std=0.02)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, codes):
        return self.net(codes)[..., 0]
