"""Seven hundred X-rays of welds: a frozen bank of Gabor filters for want of a pretrained backbone, a small head on top.

data: weld_seams

[data]
label = "finding"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 40
micro_batch_size = 40
optimizer = { learning_rate = 5e-3, weight_decay = 0.1 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIDE = 20


def gabor(theta, wavelength, phase, size=7):
    half = size // 2
    y, x = np.mgrid[-half : half + 1, -half : half + 1]
    along = x * np.cos(theta) + y * np.sin(theta)
    kernel = np.exp(-(x**2 + y**2) / (2 * (0.45 * wavelength) ** 2)) * np.cos(2 * np.pi * along / wavelength + phase)
    kernel -= kernel.mean()
    return kernel / np.abs(kernel).sum()


def filter_bank():
    angles = np.arange(6) * np.pi / 6
    bank = [gabor(a, w, p) for a in angles for w in (3.0, 5.0) for p in (0, np.pi / 2)]
    return torch.tensor(np.stack(bank)[:, None], dtype=torch.float32)


class FrozenBackbone(nn.Module):
    def __init__(self):
        super().__init__()
        weight = filter_bank()
        self.conv = nn.Conv2d(1, len(weight), 7, padding=3, padding_mode="reflect", bias=False)
        self.conv.weight = nn.Parameter(weight, requires_grad=False)
        self.out_features = 4 * len(weight)

    @torch.no_grad()
    def forward(self, x):
        r = self.conv(x).flatten(2)
        # strongest answers of both signs, the mean energy, and how uneven it is
        return torch.cat([r.amax(2), r.amin(2), r.abs().mean(2), r.abs().std(2)], dim=1)


class WeldClassifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = FrozenBackbone()
        d = self.backbone.out_features
        self.head = nn.Sequential(nn.BatchNorm1d(d), nn.Dropout(0.4), nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, xray):
        return self.head(self.backbone(xray))


class WeldFindings(Task):
    kind = "multiclass"
    metrics = directions_of("balanced_accuracy", "macro_f1", "log_loss")

    def fit(self, train):
        counts = dict(train.collect()["finding"].value_counts().iter_rows())
        self.fitted = {"classes": sorted(counts), "counts": [counts[c] for c in sorted(counts)]}

    def encode(self, rows):
        x = torch.tensor(rows["xray"].to_list(), dtype=torch.float32).view(-1, 1, SIDE, SIDE)
        batch = {"xray": (x - 110) / 40}
        if "finding" in rows.columns:
            lookup = {c: i for i, c in enumerate(self.fitted["classes"])}
            batch[LABEL] = torch.tensor([lookup[f] for f in rows["finding"]])
        return batch

    def augment(self, batch, generator):
        x = batch["xray"]
        for axis in (2, 3):
            turn = torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5
            x = torch.where(turn, x.flip(axis), x)
        return {**batch, "xray": x}

    def build_model(self):
        return WeldClassifier(len(self.fitted["classes"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        # weights by the effective number of samples, beta = 0.99
        counts = torch.tensor(self.fitted["counts"], dtype=output.dtype, device=output.device)
        w = (1 - 0.99) / (1 - 0.99**counts)
        w = w / w.sum() * len(w)
        return nn.functional.cross_entropy(output, batch[LABEL], weight=w, reduction="none")
