"""Disputed payments: shops hashed into an embedding (the hashing trick), issuers by the card's first digits.

data: chargebacks

[data]
label = "disputed"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3, weight_decay = 0.1 }
"""
import math
import zlib

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

N_BUCKETS = 1024


def bucket(name: str) -> int:
    """A stable hash: the same in every process."""
    return zlib.crc32(name.encode()) % N_BUCKETS


class HashedNet(nn.Module):
    def __init__(self, n_issuers, n_dense, prior):
        super().__init__()
        self.shops = nn.Embedding(N_BUCKETS, 6)
        self.issuers = nn.Embedding(n_issuers + 1, 3)
        nn.init.normal_(self.shops.weight, std=0.05)
        self.tower = nn.Sequential(nn.Linear(6 + 3 + n_dense, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.constant_(self.tower[-1].bias, math.log(prior / (1 - prior)))

    def forward(self, shop, issuer, dense):
        h = torch.cat((self.shops(shop), self.issuers(issuer), dense), dim=-1)
        return self.tower(h)[:, 0]


class Chargebacks(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "brier")

    def fit(self, train):
        df = train.collect()
        log_amount = np.log(df["amount"].to_numpy())
        self.fitted = {
            "issuers": sorted({card[:4] for card in df["card"]}),
            "log_amount": {"mean": float(log_amount.mean()), "std": float(log_amount.std())},
            "prior": float(df["disputed"].mean()),
        }

    def dense(self, rows):
        stats = self.fitted["log_amount"]
        amount = (np.log(rows["amount"].to_numpy()) - stats["mean"]) / stats["std"]
        angle = rows["hour"].to_numpy() / 24 * 2 * np.pi
        return np.stack([amount, np.sin(angle), np.cos(angle)], axis=1)

    def encode(self, rows):
        issuer_of = {issuer: k + 1 for k, issuer in enumerate(self.fitted["issuers"])}
        batch = {
            "shop": torch.tensor([bucket(m) for m in rows["merchant"]]),
            "issuer": torch.tensor([issuer_of.get(card[:4], 0) for card in rows["card"]]),
            "dense": torch.from_numpy(self.dense(rows).astype(np.float32)),
        }
        if "disputed" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["disputed"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return HashedNet(len(self.fitted["issuers"]), 3, self.fitted["prior"])

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()
