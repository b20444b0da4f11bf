"""A Hamiltonian network: the energy is learned, its gradient by torch.func tells how a state changes.

data: springs

[data]
label = "change"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, weight_decay = 0.0 }
"""
import numpy as np
import torch
from torch import nn
from torch.func import grad, vmap

from perennial.engine.task import LABEL, Task


class HNN(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.w1 = nn.Linear(4, hidden)
        self.w2 = nn.Linear(hidden, hidden)
        self.w3 = nn.Linear(hidden, 1, bias=False)
        for layer in (self.w1, self.w2, self.w3):
            nn.init.orthogonal_(layer.weight)
        J = torch.zeros(4, 4)
        J[:2, 2:], J[2:, :2] = torch.eye(2), -torch.eye(2)
        self.register_buffer("J", J)

    def energy(self, x):
        h = torch.tanh(self.w1(x))
        h = h + torch.tanh(self.w2(h))
        return self.w3(h).squeeze(-1)

    def forward(self, state):
        dH = vmap(grad(self.energy))(state)
        return dH @ self.J.T  # dq/dt = dH/dp, dp/dt = -dH/dq


class Springs(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"r2": "maximize"}

    def fit(self, train):
        change = np.array(train.select("change").collect()["change"].to_list())
        self.fitted = {"scale": change.std(axis=0).tolist(), "mean": change.mean(axis=0).tolist()}

    def encode(self, rows):
        batch = {"state": torch.tensor(rows["state"].to_list(), dtype=torch.float32)}
        if "change" in rows.columns:
            batch[LABEL] = torch.tensor(rows["change"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return HNN()

    def losses(self, output, batch):
        scale = torch.tensor(self.fitted["scale"], device=output.device)
        return ((output - batch[LABEL]) / scale).square().mean(dim=-1)

    def statistic(self, output, batch):
        mean = torch.tensor(self.fitted["mean"], device=output.device)
        residual = (output - batch[LABEL]).square().sum(1)
        total = (batch[LABEL] - mean).square().sum(1)
        return torch.stack([residual, total], dim=1)

    def score(self, predictions, labels):
        residual, total = (predictions * labels[:, None]).sum(axis=0)
        return {"r2": float(1 - residual / total)}
