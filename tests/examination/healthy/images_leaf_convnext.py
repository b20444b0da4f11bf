"""Diseases of apple leaves from PNG files: a ConvNeXt in small with layer scale and stochastic depth, random erasing, orchards kept whole.

data: leaf_photos

[data]
label = "disease"
group = "orchard"
features = ["image"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 6e-3, weight_decay = 0.05 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""
import io
import math
from collections.abc import Mapping

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Batch, Task

IMAGE_SIZE = 24


def drop_path(x: Tensor, drop_prob: float = 0.0, training: bool = True) -> Tensor:
    """Drop paths (stochastic depth) per sample, when applied in the main path of residual blocks."""
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    return x * x.new_empty(shape).bernoulli_(keep_prob) / keep_prob


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of [B, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim: int, drop_prob: float, ls_init_value: float = 0.5) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(dim, dim, kernel_size=5, padding=2, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 3 * dim)
        self.fc2 = nn.Linear(3 * dim, dim)
        self.gamma = nn.Parameter(ls_init_value * torch.ones(dim))
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.norm(self.conv_dw(x).permute(0, 2, 3, 1))
        x = self.gamma * self.fc2(F.gelu(self.fc1(x)))
        return shortcut + drop_path(x.permute(0, 3, 1, 2), self.drop_prob, self.training)


class ConvNeXt(nn.Module):
    def __init__(self, num_classes: int, dims: tuple[int, int] = (24, 48), depths: tuple[int, int] = (2, 2)) -> None:
        super().__init__()
        rates = torch.linspace(0, 0.15, sum(depths)).tolist()
        self.stem = nn.Sequential(nn.Conv2d(3, dims[0], kernel_size=3, stride=2, padding=1), LayerNorm2d(dims[0]))
        self.stage1 = nn.Sequential(*[ConvNeXtBlock(dims[0], rates[i]) for i in range(depths[0])])
        self.downsample = nn.Sequential(LayerNorm2d(dims[0]), nn.Conv2d(dims[0], dims[1], kernel_size=2, stride=2))
        self.stage2 = nn.Sequential(*[ConvNeXtBlock(dims[1], rates[depths[0] + i]) for i in range(depths[1])])
        self.norm = nn.LayerNorm(dims[1])
        self.head = nn.Linear(dims[1], num_classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stage2(self.downsample(self.stage1(self.stem(image))))
        return self.head(self.norm(x.mean(dim=(-2, -1))))


def random_erasing(image: Tensor, generator: torch.Generator, prob: float = 0.25) -> Tensor:
    """Replace a rectangle of some images by the mean colour, which is zero after normalisation."""
    n, _, height, width = image.shape
    top, left = (torch.randint(0, side - 4, (n, 1, 1), generator=generator) for side in (height, width))
    h, w = (torch.randint(4, 9, (n, 1, 1), generator=generator) for _ in range(2))
    y, x = torch.arange(height).view(1, -1, 1), torch.arange(width).view(1, 1, -1)
    erased = (y >= top) & (y < top + h) & (x >= left) & (x < left + w)
    erased &= torch.rand(n, 1, 1, generator=generator) < prob
    return image.masked_fill(erased.unsqueeze(1), 0.0)


class LeafDiseases(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")

    def load(self, rows: pl.DataFrame) -> Tensor:
        images = [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in rows["image"]]
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255

    def fit(self, train: pl.LazyFrame) -> None:
        df = train.collect()
        images = self.load(df)
        self.fitted = {
            "classes": sorted(df["disease"].unique().to_list()),
            "mean": images.mean(dim=(0, 2, 3)).tolist(),
            "std": images.std(dim=(0, 2, 3)).tolist(),
        }

    def encode(self, rows: pl.DataFrame) -> Batch:
        mean, std = (torch.tensor(self.fitted[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
        batch = {"image": (self.load(rows) - mean) / std}
        if "disease" in rows.columns:
            index: Mapping[str, int] = {name: i for i, name in enumerate(self.fitted["classes"])}
            batch[LABEL] = torch.tensor([index[name] for name in rows["disease"]])
        return batch

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        image = batch["image"]
        for dim in (-1, -2):
            flip = torch.rand(len(image), 1, 1, 1, generator=generator) < 0.5
            image = torch.where(flip, image.flip(dim), image)
        return {**batch, "image": random_erasing(image, generator)}

    def build_model(self) -> nn.Module:
        return ConvNeXt(len(self.fitted["classes"]))

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=0.1)

    def expected_initial_loss(self) -> float:
        return math.log(len(self.fitted["classes"]))

    @property
    def prediction_names(self) -> list[str]:
        return self.fitted["classes"]
