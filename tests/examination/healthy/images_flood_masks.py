"""Water in radar chips (Sen1Floods11 in small): a U-Net of two levels, BCE and Dice, void ignored.

data: flood_chips

[data]
label = "mask"
features = ["decibels"]
ids = ["row_id"]
meta = ["country"]

[training]
steps = 260
global_batch_size = 24
micro_batch_size = 24
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

SIDE = 24
IGNORE = 255
LOW = np.array([-30.0, -38.0], dtype=np.float32).reshape(2, 1, 1)  # dB, VV and VH
HIGH = np.array([0.0, -5.0], dtype=np.float32).reshape(2, 1, 1)


class DoubleConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.net(x)


class FloodUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1 = DoubleConv(2, 12)
        self.enc2 = DoubleConv(12, 24)
        self.bottom = DoubleConv(24, 32)
        self.up2 = nn.ConvTranspose2d(32, 24, 2, stride=2)
        self.dec2 = DoubleConv(48, 24)
        self.up1 = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.dec1 = DoubleConv(24, 12)
        self.out = nn.Conv2d(12, 1, 1)

    def forward(self, radar):
        e1 = self.enc1(radar)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        h = self.bottom(F.max_pool2d(e2, 2))
        h = self.dec2(torch.cat([self.up2(h), e2], dim=1))
        h = self.dec1(torch.cat([self.up1(h), e1], dim=1))
        return self.out(h).squeeze(1)


class FloodMasks(Task):
    kind = "statistic"
    metrics = {"iou": "maximize", "pixel_accuracy": "maximize"}
    serves_predictions = True

    def encode(self, rows):
        db = np.array(rows["decibels"].to_list(), dtype=np.float32).reshape(-1, 2, SIDE, SIDE)
        scaled = (db.clip(LOW, HIGH) - LOW) / (HIGH - LOW) * 2 - 1
        batch = {"radar": torch.from_numpy(np.nan_to_num(scaled, nan=0.0))}
        if "mask" in rows.columns:
            mask = np.array(rows["mask"].to_list(), dtype=np.int64).reshape(-1, SIDE, SIDE)
            batch[LABEL] = torch.from_numpy(mask)
            batch[WEIGHT] = (batch[LABEL] != IGNORE).flatten(1).sum(dim=1).float()
        return batch

    def augment(self, batch, generator):
        turns = int(torch.randint(4, (1,), generator=generator))
        radar = torch.rot90(batch["radar"], turns, dims=(2, 3))
        mask = torch.rot90(batch[LABEL], turns, dims=(1, 2))
        return {**batch, "radar": radar, LABEL: mask}

    def build_model(self):
        return FloodUNet()

    def losses(self, output, batch):
        valid = (batch[LABEL] != IGNORE).float()
        target = batch[LABEL].float() * valid
        bce = F.binary_cross_entropy_with_logits(output, target, reduction="none")
        return (bce * valid).flatten(1).sum(1) / valid.flatten(1).sum(1).clamp(min=1)

    def training_losses(self, output, batch):
        valid = (batch[LABEL] != IGNORE).float()
        target = batch[LABEL].float() * valid
        p = torch.sigmoid(output) * valid
        both = (p * target).flatten(1).sum(1)
        dice = (2 * both + 1) / (p.flatten(1).sum(1) + target.flatten(1).sum(1) + 1)
        return self.losses(output, batch) + 0.5 * (1 - dice)

    def predict(self, output):
        return torch.sigmoid(output)

    def statistic(self, output, batch):
        valid = batch[LABEL] != IGNORE
        guess = (output > 0) & valid
        water = (batch[LABEL] == 1) & valid
        hits = (guess & water).flatten(1).sum(1)
        union = (guess | water).flatten(1).sum(1)
        right = ((guess == water) & valid).flatten(1).sum(1)
        return torch.stack([hits, union, right, valid.flatten(1).sum(1)], dim=1).double()

    def score(self, predictions, labels):
        seen = predictions[labels > 0]
        hits, union, right, valid = seen.sum(axis=0)
        return {"iou": hits / max(union, 1), "pixel_accuracy": right / max(valid, 1)}
