"""Promoters in windows of DNA: convolutions over one-hot bases, both strands by the same network.

data: promoter_windows

[data]
label = "promoter"
features = ["window"]
text = ["window"]
ids = ["row_id"]
meta = ["organism"]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 8e-3, weight_decay = 0.02 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

LENGTH = 90
BASES = "ACGT"  # in this order the complement of a base is the one at the mirrored place


def one_hot(window: str) -> np.ndarray:
    """[LENGTH, 4]; an unread base is a row of quarters."""
    x = np.full((LENGTH, 4), 0.25, dtype=np.float32)
    for i, base in enumerate(window[:LENGTH].upper()):
        if base in BASES:
            x[i] = 0.0
            x[i, BASES.index(base)] = 1.0
    return x


class Strand(nn.Module):
    """DeepBind: motifs, the best place of each, and a small network on what was found."""

    def __init__(self, filters=48):
        super().__init__()
        self.motifs = nn.Conv1d(4, filters, 8, padding=3)
        self.head = nn.Sequential(
            nn.Dropout(0.1), nn.Linear(filters, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, x):
        h = torch.relu(self.motifs(x))
        return self.head(h.amax(dim=2))


class BothStrands(nn.Module):
    def __init__(self):
        super().__init__()
        self.strand = Strand()

    def forward(self, dna):
        forward = dna.transpose(1, 2)  # [B, 4, L]
        reverse_complement = forward.flip(1, 2)
        both = torch.cat([self.strand(forward), self.strand(reverse_complement)], dim=1)
        return both.amax(dim=1, keepdim=True)


class Promoters(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def encode(self, rows):
        dna = (
            np.stack([one_hot(w) for w in rows["window"]]) if rows.height else np.zeros((0, 90, 4))
        )
        batch = {"dna": torch.from_numpy(dna.astype(np.float32))}
        if "promoter" in rows.columns:
            batch[LABEL] = torch.tensor(rows["promoter"].to_list()).float()
        return batch

    def build_model(self):
        return BothStrands()

    def losses(self, output, batch):
        logit = output.squeeze(1)
        return binary_cross_entropy_with_logits(logit, batch[LABEL], reduction="none")
