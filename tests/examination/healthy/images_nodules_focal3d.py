"""Lung nodules in small CT volumes: 3D convolutions, a lung window in Hounsfield units, focal loss with a prior bias.

data: lung_volumes

[data]
label = "nodule"
features = ["volume"]
ids = ["row_id"]
meta = ["site"]

[training]
steps = 350
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SHAPE = (10, 14, 14)
HU_MIN, HU_MAX = -1000, 200


class NoduleNet3D(nn.Module):
    def __init__(self, prior):
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8, affine=True), nn.LeakyReLU(0.01))
        self.block2 = nn.Sequential(nn.Conv3d(8, 16, 3, stride=2, padding=1), nn.InstanceNorm3d(16, affine=True), nn.LeakyReLU(0.01))
        self.block3 = nn.Sequential(nn.Conv3d(16, 24, 3, padding=1), nn.LeakyReLU(0.01))
        self.fc = nn.Linear(24, 1)
        nn.init.normal_(self.fc.weight, std=0.01)
        nn.init.constant_(self.fc.bias, math.log(prior / (1 - prior)))

    def forward(self, ct):
        h = self.block3(self.block2(self.block1(ct)))
        return self.fc(F.adaptive_max_pool3d(h, 1).flatten(1)).squeeze(1)


class Nodules(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc")

    def fit(self, train):
        y = train.collect()["nodule"].to_numpy()
        self.fitted = {"prior": float(y.mean())}

    def encode(self, rows):
        hu = np.asarray(rows["volume"].to_list(), dtype=np.float32).reshape(-1, 1, *SHAPE)
        ct = (np.clip(hu, HU_MIN, HU_MAX) - HU_MIN) / (HU_MAX - HU_MIN)
        batch = {"ct": torch.from_numpy(ct * 2 - 1)}
        if "nodule" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["nodule"].to_numpy().astype("float32"))
        return batch

    def augment(self, batch, generator):
        ct = batch["ct"]
        for axis in (2, 3, 4):
            mirrored = torch.rand(len(ct), 1, 1, 1, 1, generator=generator) < 0.5
            ct = torch.where(mirrored, ct.flip(axis), ct)
        return {**batch, "ct": ct}

    def build_model(self):
        return NoduleNet3D(self.fitted["prior"])

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        y = batch[LABEL]
        bce = self.losses(output, batch)
        p_t = torch.exp(-bce)
        alpha_t = 0.75 * y + 0.25 * (1 - y)
        return alpha_t * (1 - p_t) ** 2 * bce
