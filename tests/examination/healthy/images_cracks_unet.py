"""Cracks in concrete, pixel by pixel: a small U-Net with bilinear upsampling, cross entropy and Dice, whole bridges held out.

data: concrete_walls

[data]
label = "mask"
group = "bridge"
features = ["tile"]
ids = ["row_id"]

[training]
steps = 320
global_batch_size = 24
micro_batch_size = 24
optimizer = { learning_rate = 4e-3, weight_decay = 1e-4 }
schedule = { shape = "step", milestones = [0.6, 0.85], factor = 0.3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

SIZE = 32


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, below, skip):
        return self.conv(torch.cat([skip, self.up(below)], dim=1))


class CrackNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inc = DoubleConv(1, width)
        self.down1 = DoubleConv(width, 2 * width)
        self.down2 = DoubleConv(2 * width, 2 * width)
        self.up1 = Up(4 * width, width)
        self.up2 = Up(2 * width, width)
        self.outc = nn.Conv2d(width, 1, kernel_size=1)

    def forward(self, tile):
        x1 = self.inc(tile)
        x2 = self.down1(F.max_pool2d(x1, 2))
        x3 = self.down2(F.max_pool2d(x2, 2))
        return self.outc(self.up2(self.up1(x3, x2), x1)).squeeze(1)


def dice_loss(logits, target, smooth=1.0):
    p = torch.sigmoid(logits).flatten(1)
    t = target.flatten(1)
    return 1 - (2 * (p * t).sum(1) + smooth) / (p.sum(1) + t.sum(1) + smooth)


class Cracks(Task):
    kind = "statistic"
    metrics = {"iou": "maximize", "recall_of_pixels": "maximize"}
    serves_predictions = True

    def fit(self, train):
        tiles = np.array(train.select("tile").collect()["tile"].to_list(), dtype=np.float32)
        self.fitted = {"mean": float(tiles.mean()), "std": float(tiles.std())}

    def encode(self, rows):
        tile = np.array(rows["tile"].to_list(), dtype=np.float32).reshape(-1, 1, SIZE, SIZE)
        batch = {"tile": torch.from_numpy((tile - self.fitted["mean"]) / self.fitted["std"]).float()}
        if "mask" in rows.columns:
            mask = np.array(rows["mask"].to_list(), dtype=np.uint8).reshape(-1, SIZE, SIZE)
            batch[LABEL] = torch.from_numpy((mask > 127).astype(np.float32))
        return batch

    def augment(self, batch, generator):
        tile, mask = batch["tile"], batch[LABEL]
        flip = torch.rand(len(tile), generator=generator) < 0.5
        tile = torch.where(flip[:, None, None, None], tile.flip(-1), tile)
        mask = torch.where(flip[:, None, None], mask.flip(-1), mask)
        turns = int(torch.randint(0, 4, (1,), generator=generator))
        return {**batch, "tile": tile.rot90(turns, (-2, -1)), LABEL: mask.rot90(turns, (-2, -1))}

    def build_model(self):
        return CrackNet()

    def losses(self, output, batch):
        bce = F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
        return bce.mean(dim=(1, 2)) + dice_loss(output, batch[LABEL])

    def predict(self, output):
        return torch.sigmoid(output).flatten(1)

    def statistic(self, output, batch):
        found, true = torch.sigmoid(output) > 0.5, batch[LABEL] > 0.5
        return torch.stack([(found & true).sum((1, 2)), (found | true).sum((1, 2)), true.sum((1, 2))], 1).double()

    def score(self, predictions, labels):
        both, either, true = (predictions * labels[:, None]).sum(axis=0)
        return {"iou": float(both / max(either, 1)), "recall_of_pixels": float(both / max(true, 1))}
