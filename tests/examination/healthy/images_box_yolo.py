"""YOLO in one scale: a grid of cells, an objectness each and a box in the cell that holds its centre.

data: boxes

[data]
label = "box"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

S = 6


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(0.1), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.LeakyReLU(0.1), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.LeakyReLU(0.1),
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.LeakyReLU(0.1),
        )
        self.head = nn.Conv2d(32, 5, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, image):
        return self.head(self.backbone(image)).permute(0, 2, 3, 1).flatten(1, 2)


def decode(output):
    """Boxes of the best cell: centre, width and height in shares of the picture."""
    best = output[..., 0].argmax(1)
    chosen = output[torch.arange(len(output)), best].sigmoid()
    column, row = best % S, best // S
    return torch.stack([(column + chosen[:, 1]) / S, (row + chosen[:, 2]) / S, chosen[:, 3], chosen[:, 4]], 1)


def iou(a, b):
    low = torch.maximum(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2)
    high = torch.minimum(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    both = (high - low).clamp(min=0).prod(1)
    return both / (a[:, 2:].prod(1) + b[:, 2:].prod(1) - both)


class BoxFinder(Task):
    kind = "statistic"
    metrics = {"iou": "maximize"}

    def encode(self, rows):
        x = np.array(rows["image"].to_list(), dtype=np.float32).reshape(-1, 1, 24, 24)
        batch = {"image": torch.from_numpy(x / 127.5 - 1)}
        if "box" in rows.columns:
            batch[LABEL] = torch.tensor(rows["box"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        flip = torch.rand(len(batch["image"]), generator=generator) < 0.5
        image = torch.where(flip[:, None, None, None], batch["image"].flip(3), batch["image"])
        box = batch[LABEL].clone()
        box[flip, 0] = 1 - box[flip, 0]
        return {**batch, "image": image, LABEL: box}

    def build_model(self):
        return Detector()

    def losses(self, output, batch):
        x, y, w, h = batch[LABEL].unbind(1)
        column, row = (x * S).long().clamp(max=S - 1), (y * S).long().clamp(max=S - 1)
        cell = row * S + column
        there = F.one_hot(cell, S * S).float()
        objectness = F.binary_cross_entropy_with_logits(output[..., 0], there, reduction="none").sum(1)
        own = output[torch.arange(len(output)), cell, 1:].sigmoid()
        target = torch.stack([x * S - column, y * S - row, w, h], 1)
        return objectness + 5 * (own - target).square().sum(1)

    def predict(self, output):
        return decode(output)

    def statistic(self, output, batch):
        return iou(decode(output), batch[LABEL]).double()

    def score(self, predictions, labels):
        return {"iou": float(np.average(predictions.ravel(), weights=labels))}
