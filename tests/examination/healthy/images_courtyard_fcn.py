"""Surfaces in photos of courtyards: a small FCN, pixels without a label ignored.

data: courtyard_photos

[data]
label = "mask"
features = ["photo"]
ids = ["row_id"]
meta = ["camera"]

[training]
steps = 300
global_batch_size = 16
micro_batch_size = 16
optimizer = { learning_rate = 3e-3, weight_decay = 1e-3 }
schedule = { shape = "cosine" }
"""
import io

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from perennial.engine.task import LABEL, Task

SIDE = 40
IGNORE = 255
NAMES = ["road", "pavement", "wall", "plants", "sky"]
TRAIN_ID = np.full(256, IGNORE, dtype=np.int64)  # the tool's numbers to classes
TRAIN_ID[[7, 8, 11, 21, 23]] = range(5)
MEAN = np.array([0.46, 0.45, 0.42], dtype=np.float32)
STD = np.array([0.20, 0.20, 0.22], dtype=np.float32)


def conv(i, o, stride=1, dilation=1):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, stride, padding=dilation, dilation=dilation, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class FCN(nn.Module):
    def __init__(self, classes=len(NAMES)):
        super().__init__()
        self.first = conv(3, 16)
        self.second = nn.Sequential(conv(16, 24, stride=2), conv(24, 24))
        self.third = nn.Sequential(conv(24, 32, stride=2), conv(32, 32, dilation=2))
        self.quarter_head = nn.Conv2d(32, classes, 1)
        self.half_head = nn.Conv2d(24, classes, 1)
        self.full_head = nn.Conv2d(16, classes, 1)

    def forward(self, photo):
        full = self.first(photo)
        half = self.second(full)
        quarter = self.third(half)
        up = lambda z, like: F.interpolate(
            z, size=like.shape[2:], mode="bilinear", align_corners=False
        )
        z = self.half_head(half) + up(self.quarter_head(quarter), half)
        return self.full_head(full) + up(z, full)


class Courtyards(Task):
    kind = "statistic"
    metrics = {"mean_iou": "maximize", "pixel_accuracy": "maximize"}
    serves_predictions = True

    def encode(self, rows):
        photos = np.zeros((rows.height, SIDE, SIDE, 3), dtype=np.float32)
        for i, data in enumerate(rows["photo"]):
            photo = Image.open(io.BytesIO(data)).convert("RGB")
            photos[i] = np.asarray(photo.resize((SIDE, SIDE), Image.Resampling.BILINEAR)) / 255
        scaled = (photos - MEAN) / STD
        batch = {"photo": torch.from_numpy(scaled.transpose(0, 3, 1, 2).copy())}
        if "mask" in rows.columns:
            masks = np.zeros((rows.height, SIDE, SIDE), dtype=np.uint8)
            for i, data in enumerate(rows["mask"]):
                mask = Image.open(io.BytesIO(data))
                masks[i] = np.asarray(mask.resize((SIDE, SIDE), Image.Resampling.NEAREST))
            batch[LABEL] = torch.from_numpy(TRAIN_ID[masks])
        return batch

    def augment(self, batch, generator):
        mirrored = torch.rand(len(batch["photo"]), generator=generator) < 0.5
        photo = batch["photo"]
        light = 1 + 0.15 * torch.randn(len(photo), 1, 1, 1, generator=generator)
        photo = torch.where(mirrored[:, None, None, None], photo.flip(3), photo) * light
        mask = torch.where(mirrored[:, None, None], batch[LABEL].flip(2), batch[LABEL])
        return {**batch, "photo": photo, LABEL: mask}

    def build_model(self):
        return FCN()

    def losses(self, output, batch):
        target = batch[LABEL]
        logits = output.permute(0, 2, 3, 1).reshape(-1, len(NAMES))
        nll = F.cross_entropy(logits, target.flatten(), ignore_index=IGNORE, reduction="none")
        seen = (target != IGNORE).flatten(1).sum(1)
        return nll.view(len(target), -1).sum(1) / seen.clamp(min=1)

    def predict(self, output):
        return output.argmax(1)

    def statistic(self, output, batch):
        """Of each class: pixels in common, said and true, where a label is."""
        true = batch[LABEL]
        said = output.argmax(1).masked_fill(true == IGNORE, IGNORE)
        pixels = lambda found: found.flatten(1).sum(1)
        parts = [[pixels((said == c) & (true == c)) for c in range(len(NAMES))]]
        parts += [[pixels(each == c) for c in range(len(NAMES))] for each in (said, true)]
        return torch.stack([number for part in parts for number in part], 1).double()

    def score(self, predictions, labels):
        both, said, true = (predictions * labels[:, None]).sum(0).reshape(3, len(NAMES))
        union = said + true - both
        return {
            "mean_iou": float((both[union > 0] / union[union > 0]).mean()),
            "pixel_accuracy": float(both.sum() / max(true.sum(), 1)),
        }
