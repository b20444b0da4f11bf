"""The retina's surface in each column of a scan: a small FCN and a soft argmax over the depth.

data: retina_scans

[data]
label = "surface_um"
features = ["scan", "um_per_pixel"]
ids = ["row_id"]
meta = ["device"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

HEIGHT, WIDTH = 32, 36
NOT_MARKED = -1.0


def conv_bn_relu(i, o, k=3, dilation=1):
    pad = dilation * (k // 2)
    layers = [nn.Conv2d(i, o, k, padding=pad, dilation=dilation, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*layers, nn.ReLU())


class SurfaceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            conv_bn_relu(2, 12), conv_bn_relu(12, 16, dilation=2), conv_bn_relu(16, 16, dilation=4)
        )
        self.score = nn.Conv2d(16, 1, 1)

    def forward(self, scan, um_per_pixel):
        z = torch.linspace(-1, 1, HEIGHT, device=scan.device).view(1, 1, HEIGHT, 1)
        x = torch.cat([scan, z.expand_as(scan)], dim=1)
        logits = self.score(self.body(x)).squeeze(1)  # [B, HEIGHT, WIDTH]
        p = logits.softmax(dim=1)
        depth = (p * torch.arange(HEIGHT, device=scan.device).view(1, HEIGHT, 1)).sum(dim=1)
        return depth * um_per_pixel[:, None]


class RetinaSurface(Task):
    kind = "statistic"
    statistics = ("absolute",)
    metrics = directions_of("forecast_mae")
    serves_predictions = True

    def fit(self, train):
        pixels = np.array(train.select("scan").collect()["scan"].to_list(), dtype=np.float32)
        self.fitted = {"mean": float(pixels.mean()), "std": float(pixels.std())}

    def encode(self, rows):
        scan = np.array(rows["scan"].to_list(), dtype=np.float32).reshape(-1, 1, HEIGHT, WIDTH)
        scan = (scan - self.fitted["mean"]) / self.fitted["std"]
        spacing = rows["um_per_pixel"].to_numpy().astype(np.float32)
        batch = {"scan": torch.from_numpy(scan), "um_per_pixel": torch.from_numpy(spacing)}
        if "surface_um" in rows.columns:
            batch[LABEL] = torch.tensor(rows["surface_um"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        scan, surface = batch["scan"], batch[LABEL]
        flip = torch.rand(len(scan), generator=generator) < 0.5
        scan = torch.where(flip[:, None, None, None], scan.flip(3), scan)
        surface = torch.where(flip[:, None], surface.flip(1), surface)
        return {**batch, "scan": scan, LABEL: surface}

    def build_model(self):
        return SurfaceNet()

    def per_scan(self, error, batch):
        marked = batch[LABEL] != NOT_MARKED
        return (error * marked).sum(dim=1) / marked.sum(dim=1).clamp(min=1)

    def losses(self, output, batch):
        error = F.smooth_l1_loss(output, batch[LABEL], reduction="none", beta=10.0)
        return self.per_scan(error, batch)

    def statistic(self, output, batch):
        return self.per_scan((output - batch[LABEL]).abs(), batch)
