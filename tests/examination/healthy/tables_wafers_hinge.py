"""Chips that fail, two in a hundred: squared hinge loss on labels of -1 and 1, spectral norms, robust scaling.

data: wafer_probes

[data]
label = "failed"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 3e-3, weight_decay = 0.05 }
"""
import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

COST = 8.0  # a chip that fails and is shipped, relative to one that is thrown away


class Wafers(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "accuracy")

    def fit(self, train):
        x = train.select(self.names).collect().to_numpy()
        low, middle, high = np.quantile(x, [0.25, 0.5, 0.75], axis=0)
        self.fitted = {"median": middle.tolist(), "iqr": (high - low).tolist()}

    @property
    def names(self):
        return [f"probe_{k:02}" for k in range(24)]

    def encode(self, rows):
        x = (rows.select(self.names).to_numpy() - self.fitted["median"]) / self.fitted["iqr"]
        batch = {"probes": torch.tensor(x.clip(-6, 6), dtype=torch.float32)}
        if "failed" in rows.columns:
            batch[LABEL] = torch.tensor(rows["failed"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Margin()

    def losses(self, output, batch):
        sign = 2 * batch[LABEL] - 1
        return (1 - sign * output).clamp(min=0).square()

    def training_losses(self, output, batch):
        return self.losses(output, batch) * torch.where(batch[LABEL] == 1, COST, 1.0)

    def predict(self, output):
        return torch.sigmoid(2 * output)  # a rank; the gate reads the AUC


class Margin(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = spectral_norm(nn.Linear(24, 32))
        self.b = spectral_norm(nn.Linear(32, 32))
        self.out = nn.Linear(32, 1)

    def forward(self, probes):
        h = nn.functional.leaky_relu(self.a(probes), 0.2)
        return self.out(nn.functional.leaky_relu(self.b(h), 0.2)).squeeze(-1)
