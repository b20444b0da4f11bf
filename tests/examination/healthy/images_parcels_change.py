"""Was something built between two pictures of a parcel? One encoder for both, and the difference.

Log loss 0.05; 0.60 for the share of parcels with a new building.

data: parcel_pairs

[data]
label = "built"
features = ["before", "after"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3, weight_decay = 0.02 }
schedule = { shape = "one_cycle" }
"""

import io

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SiameseDifference(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.compare = nn.Sequential(
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.fc = nn.Linear(2 * width, 1)

    def forward(self, before, after):
        a, b = self.encoder(before), self.encoder(after)
        h = self.compare(torch.cat([b - a, (b - a).abs()], dim=1))
        return self.fc(h.amax(dim=(2, 3))).squeeze(1)


class ParcelsChange(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc", "f1")

    def pictures(self, column):
        """Each picture by its own median and deviation: seasons differ in light."""
        pixels = np.stack([np.asarray(Image.open(io.BytesIO(png))) for png in column])
        pixels = pixels.astype(np.float32)
        middle = np.median(pixels, axis=(1, 2), keepdims=True)
        return torch.from_numpy((pixels - middle) / 40)[:, None]

    def encode(self, rows):
        batch = {"before": self.pictures(rows["before"]), "after": self.pictures(rows["after"])}
        if "built" in rows.columns:
            batch[LABEL] = torch.tensor(rows["built"].to_list()).float()
        return batch

    def augment(self, batch, generator):
        """Both pictures of a pair are turned and mirrored alike."""
        quarters = int(torch.randint(0, 4, (), generator=generator))
        mirrored = bool(torch.rand((), generator=generator) < 0.5)
        changed = {}
        for name in ("before", "after"):
            x = batch[name].rot90(quarters, dims=(2, 3))
            changed[name] = x.flip(3) if mirrored else x
        return {**batch, **changed}

    def build_model(self):
        return SiameseDifference()

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
