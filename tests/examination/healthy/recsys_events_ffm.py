"""Does a user look closer at a proposed event? A field-aware factorisation machine.

Log loss 0.44; 0.50 for the share of those who do.

data: event_tips

[data]
label = "looked"
time = "shown_at"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.0 }
schedule = { shape = "cosine" }
"""

from itertools import combinations

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

FIELDS = ["user", "event", "genre", "district", "weekday", "device"]


class FieldAwareFM(nn.Module):
    """One table of vectors per field that a feature may meet; fields lie one after the other."""

    def __init__(self, field_dims, embed_dim=4):
        super().__init__()
        starts = [0, *torch.tensor(field_dims).cumsum(0)[:-1].tolist()]
        self.register_buffer("offsets", torch.tensor(starts), persistent=False)
        total = sum(field_dims)
        self.bias = nn.Parameter(torch.zeros(()))
        self.linear = nn.Embedding(total, 1)
        self.tables = nn.ModuleList([nn.Embedding(total, embed_dim) for _ in field_dims])
        nn.init.zeros_(self.linear.weight)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.1)
        self.dropout = nn.Dropout(0.4)

    def forward(self, codes):
        x = codes + self.offsets
        vectors = [table(x) for table in self.tables]
        pairs = combinations(range(len(self.tables)), 2)
        crossed = torch.stack([vectors[j][:, i] * vectors[i][:, j] for i, j in pairs], dim=1)
        linear = self.linear(x).sum(dim=(1, 2))
        return self.bias + linear + self.dropout(crossed).sum(dim=(1, 2))


class EventTips(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc", "average_precision")

    def fit(self, train):
        df = train.collect()
        self.fitted = {c: sorted(df[c].unique()) for c in FIELDS}

    def encode(self, rows):
        codes = []
        for c in FIELDS:
            number = {v: k for k, v in enumerate(self.fitted[c], start=1)}
            codes.append([number.get(v, 0) for v in rows[c]])
        batch = {"codes": torch.tensor(codes).T.contiguous()}
        if "looked" in rows.columns:
            batch[LABEL] = torch.tensor(rows["looked"].to_list()).float()
        return batch

    def build_model(self):
        return FieldAwareFM([len(self.fitted[c]) + 1 for c in FIELDS])

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
