"""Stereo matching: a siamese CNN, correlation over shifts, and a soft argmax (after DispNetC).

data: stereo_patches

[data]
label = "shift"
features = ["left", "right"]
ids = ["row_id"]
meta = ["rig"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

H, W = 16, 32
MAX_SHIFT = 10


class Siamese(nn.Module):
    def __init__(self, ch=16):
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(1, ch, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(ch, ch, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(ch, ch, 1),
        )
        self.sharpness = nn.Parameter(torch.tensor(10.0))

    def forward(self, left, right):
        a = F.normalize(self.tower(left), dim=1)
        b = F.normalize(self.tower(right), dim=1)
        scores = []
        for d in range(MAX_SHIFT):
            # what lies at x on the left lies at x - d on the right
            product = (a[..., d:] * b[..., : W - d]).sum(dim=1)
            scores.append(product.mean(dim=(1, 2)))
        cost = torch.stack(scores, dim=1) * self.sharpness
        p = cost.softmax(dim=1)
        shifts = torch.arange(MAX_SHIFT, dtype=p.dtype, device=p.device)
        return (p * shifts).sum(dim=1)


class StereoShift(Task):
    kind = "regression"
    metrics = {"bad_1px": "minimize"} | directions_of("mae", "rmse")

    def patch(self, column):
        x = np.array(column.to_list(), dtype=np.uint8).reshape(-1, 1, H, W)
        x = x.astype(np.float32) - 128
        return torch.from_numpy(x / 64)

    def encode(self, rows):
        batch = {"left": self.patch(rows["left"]), "right": self.patch(rows["right"])}
        if "shift" in rows.columns:
            batch[LABEL] = torch.tensor(rows["shift"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        left, right = batch["left"], batch["right"]
        flip = torch.rand(len(left), 1, 1, 1, generator=generator) < 0.5
        left = torch.where(flip, left.flip(-2), left)
        right = torch.where(flip, right.flip(-2), right)
        gain = 1 + 0.1 * torch.randn(2, len(left), 1, 1, 1, generator=generator)
        return {**batch, "left": left * gain[0], "right": right * gain[1]}

    def build_model(self):
        return Siamese()

    def losses(self, output, batch):
        return F.smooth_l1_loss(output, batch[LABEL], reduction="none")

    def score(self, predictions, labels):
        bad = np.abs(predictions - labels) > 1.0
        return super().score(predictions, labels) | {"bad_1px": float(bad.mean())}
