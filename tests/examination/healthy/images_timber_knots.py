"""Knots and cracks of boards, pixel by pixel: a small U-Net; pixels nobody was sure of are ignored.

Mean IoU 0.98 on other boards; 0.30 for clear wood everywhere.

data: timber_boards

[data]
label = "mask"
features = ["picture"]
group = "board"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3, weight_decay = 0.01 }
schedule = { shape = "one_cycle" }
"""

import io

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from perennial.engine.task import LABEL, Task

IGNORE = 255
CLASSES = 3


def conv(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False), nn.GroupNorm(4, o), nn.ReLU()
    )


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1, self.down2 = conv(3, width), conv(width, 2 * width)
        self.middle = conv(2 * width, 2 * width)
        self.up2 = conv(4 * width, width)
        self.up1 = conv(2 * width, width)
        self.outc = nn.Conv2d(width, CLASSES, 1)

    def forward(self, picture):
        a = self.down1(picture)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        x = self.up2(torch.cat([b, F.interpolate(c, scale_factor=2)], dim=1))
        x = self.up1(torch.cat([a, F.interpolate(x, scale_factor=2)], dim=1))
        return self.outc(x)


class TimberKnots(Task):
    kind = "statistic"
    metrics = {"mean_iou": "maximize", "pixel_loss": "minimize"}
    serves_predictions = True

    def fit(self, train):
        masks = self.pixels(train.collect()["mask"])
        counts = np.array([(masks == k).sum() for k in range(CLASSES)])
        self.fitted = {"weights": np.sqrt(counts.sum() / (CLASSES * counts)).tolist()}

    def pixels(self, column):
        return np.stack([np.asarray(Image.open(io.BytesIO(png))) for png in column])

    def encode(self, rows):
        pictures = self.pixels(rows["picture"]).transpose(0, 3, 1, 2)
        batch = {"picture": torch.tensor(pictures / 127.5 - 1, dtype=torch.float32)}
        if "mask" in rows.columns:
            batch[LABEL] = torch.tensor(self.pixels(rows["mask"]), dtype=torch.long)
        return batch

    def augment(self, batch, generator):
        """Turn boards by quarters, and make them lighter or darker."""
        picture, mask = batch["picture"], batch[LABEL]
        quarters = int(torch.randint(0, 4, (), generator=generator))
        light = torch.randn(len(picture), 1, 1, 1, generator=generator).to(picture.device)
        picture = picture.rot90(quarters, dims=(2, 3)) + 0.1 * light
        return {"picture": picture, LABEL: mask.rot90(quarters, dims=(1, 2))}

    def build_model(self):
        return UNet()

    def pixel_losses(self, output, batch, weights=None):
        loss = F.cross_entropy(
            output, batch[LABEL], weight=weights, ignore_index=IGNORE, reduction="none"
        )
        return loss.sum(dim=(1, 2)) / (batch[LABEL] != IGNORE).sum(dim=(1, 2)).clamp(min=1)

    def losses(self, output, batch):
        return self.pixel_losses(output, batch)

    def training_losses(self, output, batch):
        weights = torch.tensor(self.fitted["weights"], device=output.device)
        return self.pixel_losses(output, batch, weights)

    def predict(self, output):
        return output.argmax(dim=1).flatten(1)

    def statistic(self, output, batch):
        """The loss, and per class how many pixels are in both masks and in either."""
        found, true = self.predict(output), batch[LABEL].flatten(1)
        known = true != IGNORE
        parts = [self.losses(output, batch)]
        for k in range(CLASSES):
            a, b = (found == k) & known, (true == k) & known
            parts += [(a & b).sum(1), (a | b).sum(1)]
        return torch.stack(parts, dim=1).double()

    def score(self, predictions, labels):
        sums = predictions.sum(axis=0)
        iou = sums[1::2] / np.maximum(sums[2::2], 1)
        return {"mean_iou": float(iou.mean()), "pixel_loss": float(predictions[:, 0].mean())}
