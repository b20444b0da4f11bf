"""Bank marketing with a deep and cross network (v2): crosses beside an MLP.

data: bank_calls

[data]
label = "y"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMERIC = ("age", "balance", "campaign")
CATEGORICAL = ("job", "month", "poutcome")


class CrossNet(nn.Module):
    def __init__(self, width, depth=2):
        super().__init__()
        self.weights = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

    def forward(self, x0):
        x = x0
        for layer in self.weights:
            x = x0 * layer(x) + x
        return x


class DCN(nn.Module):
    def __init__(self, sizes, numbers, dim=6):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(size, dim) for size in sizes])
        for table in self.embeddings:
            nn.init.normal_(table.weight, std=0.1)
        width = dim * len(sizes) + numbers
        self.cross = CrossNet(width)
        self.deep = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.output = nn.Linear(width + 16, 1)
        nn.init.zeros_(self.output.weight)

    def forward(self, dense, sparse):
        x = torch.cat([dense, *(table(sparse[:, i]) for i, table in enumerate(self.embeddings))], 1)
        return self.output(torch.cat([self.cross(x), self.deep(x)], 1)).squeeze(1)


class BankMarketing(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        df = train.collect()
        numbers = self.numbers(df)
        self.fitted = {
            "mean": numbers.mean(0).tolist(),
            "std": numbers.std(0).tolist(),
            "values": {c: sorted(df[c].unique().to_list()) for c in CATEGORICAL},
            "prior": float(df["y"].mean()),
        }

    @staticmethod
    def numbers(df):
        x = df.select(NUMERIC).to_numpy().astype(np.float64)
        return np.sign(x) * np.log1p(np.abs(x))

    def encode(self, rows):
        z = (self.numbers(rows) - self.fitted["mean"]) / self.fitted["std"]
        codes = []
        for c in CATEGORICAL:
            lookup = {v: i + 1 for i, v in enumerate(self.fitted["values"][c])}
            codes.append([lookup.get(v, 0) for v in rows[c].to_list()])
        batch = {"dense": torch.tensor(z, dtype=torch.float32), "sparse": torch.tensor(codes).T.contiguous()}
        if "y" in rows.columns:
            batch[LABEL] = torch.tensor(rows["y"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        model = DCN([len(v) + 1 for v in self.fitted["values"].values()], len(NUMERIC))
        p = self.fitted["prior"]
        nn.init.constant_(model.output.bias, math.log(p / (1 - p)))
        return model

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def expected_initial_loss(self):
        p = self.fitted["prior"]
        return -p * math.log(p) - (1 - p) * math.log(1 - p)
