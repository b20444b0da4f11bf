"""Clicks by AutoInt: one table for all fields with offsets, self-attention across the fields,
residuals, a linear part beside it.

data: banner_auctions

[data]
label = "click"
time = "shown_at"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.1 }
"""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SPARSE = ["site", "slot", "device", "advertiser", "creative", "carrier", "hour"]
DENSE = ["floor_price", "area"]


class FeaturesEmbedding(nn.Module):
    """All fields in one table; each field's codes begin at its offset."""

    def __init__(self, field_dims, dim):
        super().__init__()
        self.embedding = nn.Embedding(sum(field_dims), dim)
        offsets = np.array([0, *np.cumsum(field_dims)[:-1]], dtype=np.int64)
        self.register_buffer("offsets", torch.from_numpy(offsets))
        nn.init.normal_(self.embedding.weight, std=0.2)

    def forward(self, x):
        return self.embedding(x + self.offsets)


class AutoInt(nn.Module):
    def __init__(self, field_dims, n_dense, dim=16, heads=2, layers=2):
        super().__init__()
        self.fields = FeaturesEmbedding(field_dims, dim)
        self.first_order = FeaturesEmbedding(field_dims, 1)
        self.dense = nn.Parameter(torch.randn(n_dense, dim) * 0.2)
        self.attention = nn.ModuleList(
            [
                nn.MultiheadAttention(dim, heads, dropout=0.1, batch_first=True)
                for _ in range(layers)
            ]
        )
        self.residual = nn.ModuleList([nn.Linear(dim, dim) for _ in range(layers)])
        self.out = nn.Linear(dim * (len(field_dims) + n_dense), 1)
        self.linear = nn.Linear(n_dense, 1)

    def forward(self, sparse, dense):
        e = torch.cat([self.fields(sparse), dense.unsqueeze(-1) * self.dense], dim=1)
        for attention, residual in zip(self.attention, self.residual):
            mixed, _ = attention(e, e, e, need_weights=False)
            e = F.relu(mixed + residual(e))
        first = self.first_order(sparse).sum(dim=(1, 2)) + self.linear(dense).squeeze(1)
        return self.out(e.flatten(1)).squeeze(1) + first


class BannerClicks(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc")

    def with_hour(self, df):
        return df.with_columns(hour=df["shown_at"].dt.hour().cast(str))

    def fit(self, train):
        df = self.with_hour(train.collect())
        self.fitted = {"vocab": {c: sorted(set(df[c].drop_nulls())) for c in SPARSE}}
        logs = np.log(df.select(DENSE).to_numpy())
        self.fitted["mean"], self.fitted["std"] = logs.mean(0).tolist(), logs.std(0).tolist()

    def encode(self, rows):
        df = self.with_hour(rows)
        codes = np.zeros((len(df), len(SPARSE)), dtype=np.int64)  # 0: unknown
        for j, c in enumerate(SPARSE):
            lookup = {v: k for k, v in enumerate(self.fitted["vocab"][c], 1)}
            codes[:, j] = [lookup.get(v, 0) for v in df[c].to_list()]
        dense = (np.log(df.select(DENSE).to_numpy()) - self.fitted["mean"]) / self.fitted["std"]
        batch = {
            "sparse": torch.from_numpy(codes),
            "dense": torch.from_numpy(dense.astype(np.float32)),
        }
        if "click" in rows.columns:
            batch[LABEL] = torch.tensor(rows["click"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return AutoInt([len(self.fitted["vocab"][c]) + 1 for c in SPARSE], len(DENSE))

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
