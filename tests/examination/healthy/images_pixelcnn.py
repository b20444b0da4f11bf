"""PixelCNN on digits in black and white: masked convolutions, each pixel from those before it.

data: digit_copies

[data]
label = "target"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task


class MaskedConv2d(nn.Conv2d):
    """Type A hides the pixel itself, type B does not; both hide all that come later."""

    def __init__(self, mask_type, *args, **kwargs):
        super().__init__(*args, **kwargs)
        _, _, h, w = self.weight.shape
        mask = torch.ones_like(self.weight)
        mask[:, :, h // 2, w // 2 + (mask_type == "B"):] = 0
        mask[:, :, h // 2 + 1:] = 0
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


class PixelCNN(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            MaskedConv2d("A", 1, width, 5, padding=2), nn.ReLU(),
            MaskedConv2d("B", width, width, 3, padding=1), nn.ReLU(),
            MaskedConv2d("B", width, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, 1, 1),
        )

    def forward(self, image):
        return self.net(image)


class BinaryDigits(Task):
    kind = "statistic"
    metrics = {"bits_per_dim": "minimize"}
    reconstructs_inputs = True

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def binary(self, column):
        return (torch.tensor(column.to_list()) >= 8).float().view(-1, 1, 8, 8)

    def encode(self, rows):
        batch = {"image": self.binary(rows["image"])}
        if "target" in rows.columns:
            batch[LABEL] = self.binary(rows["target"])
        return batch

    def build_model(self):
        return PixelCNN()

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none").mean((1, 2, 3))

    def predict(self, output):
        return output.sigmoid().flatten(1)

    def statistic(self, output, batch):
        return self.losses(output, batch) / math.log(2)

    def score(self, predictions, labels):
        return {"bits_per_dim": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return math.log(2)
