"""A Hamiltonian network: the motion is the symplectic gradient of a learned energy, by torch.func within the forward pass.

data: spring_states

[data]
label = "change"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 4e-3, weight_decay = 0.0 }
"""
import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from perennial.engine.task import LABEL, Task


class Energy(nn.Module):
    def __init__(self, d=4, hidden=48):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(d, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1, bias=False)
        for layer in (self.l1, self.l2, self.l3):
            nn.init.orthogonal_(layer.weight)

    def forward(self, z):
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(z)))))[0]


class Hamiltonian(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = Energy()
        half, zero = torch.eye(2), torch.zeros(2, 2)
        self.register_buffer("J", torch.cat([torch.cat([zero, half], 1), torch.cat([-half, zero], 1)]))

    def forward(self, z):
        weights = dict(self.energy.named_parameters())
        slope = grad(lambda one: functional_call(self.energy, weights, (one,)))
        return vmap(slope)(z) @ self.J.T


class Springs(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"mse": "minimize"}

    def encode(self, rows):
        z = rows.select("q1", "q2", "p1", "p2").to_numpy()
        batch = {"z": torch.tensor(z, dtype=torch.float32)}
        if "change" in rows.columns:
            batch[LABEL] = torch.tensor(rows["change"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Hamiltonian()

    def losses(self, output, batch):
        return (output - batch[LABEL]).pow(2).mean(-1)

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"mse": float(np.average(predictions, weights=labels))}
