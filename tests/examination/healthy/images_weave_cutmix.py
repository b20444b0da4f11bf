"""Squeeze and excitation, group norm, CutMix while training: five weaves in any colour.

data: textures

[data]
label = "weave"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SEBlock(nn.Module):
    def __init__(self, channels, reduction=4):
        super().__init__()
        self.fc1 = nn.Linear(channels, channels // reduction)
        self.fc2 = nn.Linear(channels // reduction, channels)

    def forward(self, x):
        squeezed = x.mean((2, 3))
        gate = torch.sigmoid(self.fc2(F.silu(self.fc1(squeezed))))
        return x * gate[:, :, None, None]


def stage(n_in, n_out, stride):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(4, n_out),
        nn.SiLU(),
        SEBlock(n_out),
    )


class SENet(nn.Module):
    def __init__(self, n_classes=5):
        super().__init__()
        self.features = nn.Sequential(stage(3, 16, 1), stage(16, 32, 2), stage(32, 32, 2))
        self.classifier = nn.Linear(32, n_classes)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, pixels):
        return self.classifier(self.features(pixels).mean((2, 3)))


class Weaves(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def encode(self, rows):
        hwc = np.array(rows["pixels"].to_list(), dtype=np.uint8).reshape(-1, 16, 16, 3)
        x = torch.from_numpy(hwc).permute(0, 3, 1, 2).float() / 255
        batch = {"pixels": (x - 0.5) / 0.25}
        if "weave" in rows.columns:
            batch[LABEL] = F.one_hot(torch.tensor(rows["weave"].to_list()), 5).argmax(1)
        return batch

    def augment(self, batch, generator):
        x, y = batch["pixels"], F.one_hot(batch[LABEL], 5).float()
        order = torch.randperm(len(x), generator=generator)
        side = int(torch.randint(2, 9, (1,), generator=generator))
        top, left = torch.randint(0, 17 - side, (2,), generator=generator).tolist()
        mixed = x.clone()
        mixed[:, :, top : top + side, left : left + side] = x[order, :, top : top + side, left : left + side]
        lam = 1 - side**2 / 256
        return {**batch, "pixels": mixed, LABEL: lam * y + (1 - lam) * y[order]}

    def build_model(self):
        return SENet()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def expected_initial_loss(self):
        return math.log(5)
