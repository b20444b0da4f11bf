"""Which candled eggs will not hatch, one in twelve: weighted classes, and the day beside the photo.

Average precision 0.96 on other trays; 0.08 for a guess.

data: candled_eggs

[data]
label = "hatches"
features = ["photo", "day"]
group = "tray"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "sgd", learning_rate = 0.03, weight_decay = 5e-4 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""

import io

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class EggNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], 1
        for out in (12, 24, 32):
            layers += [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
            width = out
        self.features = nn.Sequential(*layers)
        self.day = nn.Linear(1, 8)
        self.classifier = nn.Sequential(
            nn.Dropout(0.2), nn.Linear(32 * 9 + 8, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, photo, day):
        h = self.features(photo).flatten(1)
        return self.classifier(torch.cat([h, self.day(day)], dim=1)).squeeze(1)


class EggsCandled(Task):
    """The positive class are the eggs that do not hatch."""

    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def fit(self, train):
        dead = float((~train.collect()["hatches"]).mean())
        self.fitted = {"pos_weight": ((1 - dead) / dead) ** 0.5}

    def encode(self, rows):
        photos = np.stack([np.asarray(Image.open(io.BytesIO(png))) for png in rows["photo"]])
        day = (rows["day"].to_numpy() - 10.5) / 2.3
        batch = {
            "photo": torch.tensor(photos / 255 - 0.45, dtype=torch.float32)[:, None] / 0.25,
            "day": torch.tensor(day, dtype=torch.float32)[:, None],
        }
        if "hatches" in rows.columns:
            batch[LABEL] = torch.tensor((~rows["hatches"]).to_list()).float()
        return batch

    def augment(self, batch, generator):
        """Mirror photos, and move them by up to two pixels."""
        x = batch["photo"]
        if torch.rand((), generator=generator) < 0.5:
            x = x.flip(3)
        dy, dx = torch.randint(-2, 3, (2,), generator=generator).tolist()
        return {**batch, "photo": x.roll((dy, dx), dims=(2, 3))}

    def build_model(self):
        return EggNet()

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        weight = torch.tensor(self.fitted["pos_weight"], device=output.device)
        return F.binary_cross_entropy_with_logits(
            output, batch[LABEL], pos_weight=weight, reduction="none"
        )
