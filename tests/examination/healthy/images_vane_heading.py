"""Headings of weather vanes: two outputs are made a unit vector, the loss is one minus the cosine of the angle between.

data: weather_vanes

[data]
label = "heading"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task


def unit(degrees):
    rad = torch.deg2rad(degrees)
    return torch.stack([rad.sin(), rad.cos()], dim=-1)  # east, north


def between(a, b):
    """The smaller angle between two headings in degrees."""
    return ((a - b + 180) % 360 - 180).abs()


class ResidualConv(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(1, c)
        self.conv1 = nn.Conv2d(c, c, 3, padding=1)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x):
        return x + self.conv2(F.silu(self.conv1(self.norm(x))))


class VaneNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(ResidualConv(c), ResidualConv(c))
        self.to_vector = nn.Linear(c * 81, 2)

    def forward(self, photo):
        v = self.to_vector(F.silu(self.blocks(self.stem(photo))).flatten(1))
        return F.normalize(v, dim=1, eps=1e-6)


class VaneHeading(Task):
    kind = "statistic"
    metrics = {"degrees_off": "minimize", "within_15": "maximize"}

    def encode(self, rows):
        photo = torch.tensor(rows["photo"].to_list(), dtype=torch.float32).view(-1, 1, 18, 18)
        # the sky's brightness is the median of a picture
        sky = photo.flatten(1).median(dim=1).values[:, None, None, None]
        batch = {"photo": (photo - sky) / 40}
        if "heading" in rows.columns:
            batch[LABEL] = torch.tensor(rows["heading"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        k = int(torch.randint(4, (1,), generator=generator))
        photo = torch.rot90(batch["photo"], k, dims=(2, 3))  # counter-clockwise
        return {**batch, "photo": photo, LABEL: (batch[LABEL] - 90 * k) % 360}

    def build_model(self):
        return VaneNet()

    def losses(self, output, batch):
        return 1 - (output * unit(batch[LABEL])).sum(dim=1)

    def predict(self, output):
        return torch.rad2deg(torch.atan2(output[:, 0], output[:, 1])) % 360

    def statistic(self, output, batch):
        off = between(self.predict(output), batch[LABEL])
        return torch.stack([off, (off < 15).float()], dim=1)

    def score(self, predictions, labels):
        off, near = (predictions * labels[:, None]).sum(0) / labels.sum()
        return {"degrees_off": float(off), "within_15": float(near)}
