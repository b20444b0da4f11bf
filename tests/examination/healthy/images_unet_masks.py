"""A U-Net of two levels: a mask per pixel as the label, Dice beside cross entropy while training.

data: masked_shapes

[data]
label = "mask"
features = ["scan"]
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task


class DoubleConv(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1, bias=False), nn.GroupNorm(4, o), nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False), nn.GroupNorm(4, o), nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(1, 8), DoubleConv(8, 16), DoubleConv(16, 32)
        self.up1, self.up2 = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.conv1, self.conv2 = DoubleConv(32, 16), DoubleConv(16, 8)
        self.outc = nn.Conv2d(8, 1, 1)
        nn.init.normal_(self.outc.weight, std=0.05)
        nn.init.zeros_(self.outc.bias)

    def forward(self, scan):
        a = self.inc(scan)
        b = self.down1(F.max_pool2d(a, 2))
        c = self.down2(F.max_pool2d(b, 2))
        x = self.conv1(torch.cat([b, self.up1(c)], dim=1))
        return self.outc(self.conv2(torch.cat([a, self.up2(x)], dim=1)))


class Segmentation(Task):
    kind = "statistic"
    metrics = {"iou": "maximize", "dice": "maximize"}

    def fit(self, train):
        x = np.array(train.select("scan").collect()["scan"].to_list())
        self.mean, self.std = float(x.mean()), float(x.std())

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        scan = torch.tensor(rows["scan"].to_list(), dtype=torch.float32).view(-1, 1, 16, 16)
        batch = {"scan": (scan - self.mean) / self.std}
        if "mask" in rows.columns:
            batch[LABEL] = torch.tensor(rows["mask"].to_list(), dtype=torch.float32).view(-1, 1, 16, 16)
        return batch

    def augment(self, batch, generator):
        """Scan and mask are turned together."""
        for dim in (2, 3):
            flip = torch.rand(len(batch["scan"]), 1, 1, 1, generator=generator) < 0.5
            batch = {k: torch.where(flip, v.flip(dim), v) for k, v in batch.items()}
        return batch

    def build_model(self):
        return UNet()

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none").mean((1, 2, 3))

    def training_losses(self, output, batch):
        p, y = output.sigmoid(), batch[LABEL]
        dice = 1 - (2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)
        return self.losses(output, batch) + dice

    def predict(self, output):
        return output.sigmoid().flatten(1)

    def statistic(self, output, batch):
        found, true = output > 0, batch[LABEL] > 0.5
        both = (found & true).flatten(1).sum(1)
        return torch.stack([both, found.flatten(1).sum(1), true.flatten(1).sum(1)], dim=1).double()

    def score(self, predictions, labels):
        both, found, true = (predictions * labels[:, None]).sum(0)
        return {"iou": float(both / max(found + true - both, 1)), "dice": float(2 * both / max(found + true, 1))}

    def expected_initial_loss(self):
        return math.log(2)
