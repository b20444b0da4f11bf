"""Crops per pixel from the air: an encoder and decoder with an auxiliary head half-way (deep supervision), unlabelled edges are -1 and ignored.

data: farmland

[data]
label = "crop"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 16
micro_batch_size = 16
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

H = W = 20
K = 4
IGNORE = -1


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.LeakyReLU(0.1, inplace=True))


class FieldNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1, self.enc2 = block(3, 16), block(16, 32)
        self.mid = block(32, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.dec = block(32, 16)
        self.main = nn.Conv2d(16, K, 1)
        self.aux = nn.Conv2d(32, K, 1)

    def forward(self, photo):
        a = self.enc1(photo)
        b = self.mid(self.enc2(nn.functional.max_pool2d(a, 2)))
        d = self.dec(torch.cat([self.up(b), a], dim=1))
        aux = nn.functional.interpolate(self.aux(b), size=(H, W), mode="bilinear", align_corners=False)
        return torch.stack([self.main(d), aux], dim=1)  # B, 2, K, H, W


class FieldCrops(Task):
    kind = "statistic"
    metrics = {"pixel_accuracy": "maximize", "pixel_loss": "minimize"}

    def fit(self, train):
        x = np.array(train.collect()["photo"].to_list(), dtype=np.float64).reshape(-1, 3)
        self.fitted = {"mean": x.mean(0).tolist(), "std": x.std(0).tolist()}

    def encode(self, rows):
        x = np.array(rows["photo"].to_list(), dtype=np.float64).reshape(-1, H, W, 3)
        x = ((x - self.fitted["mean"]) / self.fitted["std"]).transpose(0, 3, 1, 2)
        batch = {"photo": torch.tensor(x, dtype=torch.float32)}
        if "crop" in rows.columns:
            batch[LABEL] = torch.tensor(rows["crop"].to_list()).view(-1, H, W)
        return batch

    def augment(self, batch, generator):
        photo, crop = batch["photo"], batch[LABEL]
        if torch.rand((), generator=generator) < 0.5:
            photo, crop = photo.flip(-1), crop.flip(-1)
        if torch.rand((), generator=generator) < 0.5:
            photo, crop = photo.transpose(-1, -2), crop.transpose(-1, -2)
        return {"photo": photo.contiguous(), LABEL: crop.contiguous()}

    def build_model(self):
        return FieldNet()

    def per_image(self, logits, target):
        loss = nn.functional.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none")
        return loss.flatten(1).sum(1) / (target != IGNORE).flatten(1).sum(1).clamp_min(1)

    def losses(self, output, batch):
        return self.per_image(output[:, 0], batch[LABEL])

    def training_losses(self, output, batch):
        return self.losses(output, batch) + 0.4 * self.per_image(output[:, 1], batch[LABEL])

    def predict(self, output):
        return output[:, 0].argmax(1).flatten(1)

    def statistic(self, output, batch):
        known = batch[LABEL] != IGNORE
        right = (output[:, 0].argmax(1) == batch[LABEL]) & known
        share = right.flatten(1).sum(1) / known.flatten(1).sum(1).clamp_min(1)
        return torch.stack([share.double(), self.losses(output, batch).double()], dim=1)

    def score(self, predictions, labels):
        share, loss = np.average(predictions, axis=0, weights=labels)
        return {"pixel_accuracy": float(share), "pixel_loss": float(loss)}
