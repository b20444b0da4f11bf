"""Banner clicks: every column hashed into its own buckets by crc32, embeddings side by side, an MLP above.

data: banner_slots

[data]
label = "click"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 512
micro_batch_size = 256
optimizer = { learning_rate = 2e-3, weight_decay = 0.02 }
"""
import zlib

import torch
from torch import nn

from perennial.engine.task import LABEL, Task

BUCKETS = {"site_id": 512, "campaign_id": 256, "device_model": 512, "hour": 32, "banner_pos": 16, "banner_size": 16}
DIM = 8


class HashedClicks(Task):
    kind = "binary"

    def encode(self, rows):
        ids = [
            [zlib.crc32(f"{column}={value}".encode()) % size for value in rows[column]]
            for column, size in BUCKETS.items()
        ]
        batch = {"ids": torch.tensor(ids).T.contiguous()}
        if "click" in rows.columns:
            batch[LABEL] = torch.tensor(rows["click"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return ClickModel()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, DIM) for size in BUCKETS.values())
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.05)
        self.mlp = nn.Sequential(nn.Linear(DIM * len(BUCKETS), 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        x = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], dim=1)
        return self.mlp(x).squeeze(1)
