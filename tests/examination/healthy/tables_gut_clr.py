"""Illness from 900 bacterial counts of 260 people: centred log-ratios of each sample, one weight-normed layer.

data: gut_samples

[data]
label = "status"
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 1e-3, weight_decay = 0.5 }
"""
import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def clr(counts, pseudo=0.5):
    """Compositional data: logarithms less their mean over the sample."""
    log = np.log(counts + pseudo)
    return log - log.mean(axis=1, keepdims=True)


class GutSamples(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        df = train.collect()
        counts = df.select(sorted(self.columns.features)).to_numpy()
        kept = np.flatnonzero((counts > 0).mean(axis=0) > 0.1)  # prevalence filter
        z = clr(counts[:, kept].astype(float))
        self.fitted = {
            "taxa": [sorted(self.columns.features)[k] for k in kept],
            "mean": z.mean(0).tolist(),
            "std": z.std(0).tolist(),
        }

    def encode(self, rows):
        z = clr(rows.select(self.fitted["taxa"]).to_numpy().astype(float))
        z = (z - self.fitted["mean"]) / self.fitted["std"]
        batch = {"clr": torch.tensor(z, dtype=torch.float32)}
        if "status" in rows.columns:
            batch[LABEL] = torch.tensor((rows["status"] == "case").to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Profile(len(self.fitted["taxa"]))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")


class Profile(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.embed = weight_norm(nn.Linear(n, 12))
        self.norm = nn.LayerNorm(12)
        self.out = nn.Linear(12, 1)

    def forward(self, clr):
        return self.out(nn.functional.gelu(self.norm(self.embed(self.drop(clr))))).squeeze(1)
