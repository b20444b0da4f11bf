"""Days in hospital by a neural additive model: a small net for each number, a table for each word, all in ModuleDicts.

data: hospital_stays

[data]
label = "days"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3, weight_decay = 1e-4 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CENTRES = {"age": (60, 20), "sodium": (139, 5), "creatinine": (1.1, 0.6), "haemoglobin": (13, 2)}
WORDS = {
    "ward": ["cardiology", "medicine", "neurology", "surgery"],
    "admission": ["emergency", "planned", "transfer"],
}


class ExU(nn.Module):
    """exp-centred units: (x - b) * exp(w), capped."""

    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n) * 0.5 + 1.0)
        self.b = nn.Parameter(torch.randn(n) * 1.5)

    def forward(self, x):
        return ((x - self.b) * self.w.exp()).clamp(0, 3)


class Additive(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.shapes = nn.ModuleDict(
            {c: nn.Sequential(ExU(32), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)) for c in CENTRES}
        )
        self.tables = nn.ModuleDict({c: nn.Embedding(len(v) + 1, 1) for c, v in WORDS.items()})
        for table in self.tables.values():
            nn.init.zeros_(table.weight)
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, **columns):
        parts = [shape(columns[name][:, None]) for name, shape in self.shapes.items()]
        parts += [table(columns[name]) for name, table in self.tables.items()]
        return self.bias + torch.cat(parts, dim=1).sum(dim=1)


class HospitalStays(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        self.fitted = {"bias": train.collect()["days"].mean()}

    def encode(self, rows):
        batch = {}
        for name, (centre, scale) in CENTRES.items():
            batch[name] = torch.from_numpy((rows[name].cast(float).to_numpy() - centre) / scale).float()
        for name, known in WORDS.items():
            batch[name] = torch.tensor([known.index(w) if w in known else len(known) for w in rows[name]])
        if "days" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["days"].to_numpy().copy()).float()
        return batch

    def build_model(self):
        return Additive(self.fitted["bias"])

    def losses(self, output, batch):
        return nn.functional.smooth_l1_loss(output, batch[LABEL], reduction="none", beta=2.0)
