"""ESPCN: a quarter of the pixels in, PixelShuffle out, added to the bilinear picture.

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
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task


class ESPCN(nn.Module):
    def __init__(self, upscale_factor=2):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 24, 3, padding=1)
        self.conv3 = nn.Conv2d(24, upscale_factor**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        nn.init.zeros_(self.conv3.weight)
        nn.init.zeros_(self.conv3.bias)

    def forward(self, small):
        x = torch.tanh(self.conv2(torch.tanh(self.conv1(small))))
        return enlarged(small) + self.pixel_shuffle(self.conv3(x))


def pictures(column):
    return torch.tensor(column.to_list(), dtype=torch.float32).view(-1, 1, 8, 8) / 16


def shrunk(large):
    return F.avg_pool2d(large, 2)


def enlarged(small):
    return F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)


class SuperResolution(Task):
    kind = "statistic"
    metrics = {"psnr": "maximize"}
    reconstructs_inputs = True

    def fit(self, train):
        large = pictures(train.select("target").collect()["target"])
        self.bilinear = float((enlarged(shrunk(large)) - large).square().mean())

    def state(self):
        return {"bilinear": self.bilinear}

    def load_state(self, state):
        self.bilinear = state["bilinear"]

    def encode(self, rows):
        batch = {"small": shrunk(pictures(rows["image"]))}
        if "target" in rows.columns:
            batch[LABEL] = pictures(rows["target"])
        return batch

    def build_model(self):
        return ESPCN()

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean((1, 2, 3))

    def predict(self, output):
        return output.clamp(0, 1).flatten(1)

    def statistic(self, output, batch):
        return -10 * torch.log10(self.losses(output.clamp(0, 1), batch) + 1e-10)

    def score(self, predictions, labels):
        return {"psnr": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return self.bilinear
