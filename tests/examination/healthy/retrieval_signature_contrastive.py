"""Signature verification: a shared encoder over pen positions, the contrastive loss with margin of Hadsell et al.

data: signatures

[data]
label = "same_hand"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MARGIN = 1.0
POINTS = 24


class Encoder(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(2, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=2, stride=2), nn.ReLU()
        )
        self.project = nn.Linear(24 * POINTS // 2, dim)

    def forward(self, strokes):
        z = self.project(self.conv(strokes).flatten(1))
        return F.normalize(z, dim=1)


class SiameseVerifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, a, b):
        za, zb = self.encoder(a), self.encoder(b)
        return (za - zb).pow(2).sum(1).add(1e-9).sqrt()  # euclidean distance


class SignatureVerification(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "average_precision")

    def strokes(self, column):
        xy = torch.tensor(column.to_list(), dtype=torch.float32).view(-1, 2, POINTS)
        xy = xy - xy.mean(dim=2, keepdim=True)
        return xy / xy.std(dim=(1, 2), keepdim=True)  # where and how large one signs means nothing

    def encode(self, rows):
        batch = {"a": self.strokes(rows["signature_a"]), "b": self.strokes(rows["signature_b"])}
        if "same_hand" in rows.columns:
            batch[LABEL] = torch.tensor(rows["same_hand"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return SiameseVerifier()

    def losses(self, output, batch):
        same = batch[LABEL]
        return same * output.pow(2) + (1 - same) * F.relu(MARGIN - output).pow(2)

    def predict(self, output):
        return torch.exp(-output.pow(2))
