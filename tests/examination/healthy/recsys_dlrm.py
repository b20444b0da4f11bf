"""DLRM: counters through a bottom MLP, hashed categories, dot products of all pairs on top.

data: ad_clicks

[data]
label = "clicked"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import math
import zlib

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

COUNTERS, CATEGORIES, BUCKETS = ["I1", "I2"], ["C1", "C2", "C3"], 256


def bucket(field, value):
    """The same in every process, and apart for each field; a gap is a value too."""
    return zlib.crc32(f"{field}={value}".encode()) % BUCKETS


class DLRM(nn.Module):
    def __init__(self, share, dim=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(BUCKETS, dim) for _ in CATEGORIES)
        for table in self.tables:
            nn.init.uniform_(table.weight, -BUCKETS**-0.5, BUCKETS**-0.5)
        self.bottom = nn.Sequential(nn.Linear(2 * len(COUNTERS), 16), nn.ReLU(), nn.Linear(16, dim), nn.ReLU())
        pairs = torch.tril_indices(len(CATEGORIES) + 1, len(CATEGORIES) + 1, offset=-1)
        self.register_buffer("left", pairs[0], persistent=False)
        self.register_buffer("right", pairs[1], persistent=False)
        self.top = nn.Sequential(nn.Linear(dim + len(pairs[0]), 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.constant_(self.top[-1].bias, math.log(share / (1 - share)))
        self.top[-1].weight.data.mul_(0.1)

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        vectors = torch.stack([x, *(table(sparse[:, k]) for k, table in enumerate(self.tables))], dim=1)
        dots = torch.bmm(vectors, vectors.mT)[:, self.left, self.right]
        return self.top(torch.cat([x, dots], dim=1)).squeeze(1)


class AdClicks(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc")

    def fit(self, train):
        self.share = float(train.select("clicked").collect()["clicked"].mean())

    def state(self):
        return {"share": self.share}

    def load_state(self, state):
        self.share = state["share"]

    def encode(self, rows):
        dense = []
        for name in COUNTERS:
            dense.append(rows[name].cast(float).fill_null(0.0).log1p().to_list())
            dense.append(rows[name].is_null().cast(float).to_list())
        sparse = [[bucket(name, value) for value in rows[name]] for name in CATEGORIES]
        batch = {"dense": torch.tensor(dense).T.contiguous(), "sparse": torch.tensor(sparse).T.contiguous()}
        if "clicked" in rows.columns:
            batch[LABEL] = torch.tensor(rows["clicked"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return DLRM(self.share)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)

    def expected_initial_loss(self):
        p = self.share
        return -p * math.log(p) - (1 - p) * math.log1p(-p)
