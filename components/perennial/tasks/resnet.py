"""ResNet (He et al., 2015): residual convolutions, for pictures of any size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ResNetShape:
    """What tells one ResNet from another.

    Attributes:
        block: `basic` has two 3 x 3 convolutions, `bottleneck` one between two of 1 x 1.
        depths: Blocks of each stage; each stage after the first halves height and width.
        widths: Channels of each stage; a bottleneck gives out four times as many.
        stem: `large` quarters height and width first, as for photos; `small` keeps them.
    """

    block: Literal["basic", "bottleneck"]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    stem: Literal["small", "large"]


EXPANSION = {"basic": 1, "bottleneck": 4}
"""Channels that leave a block, as a multiple of the stage's width."""
RESNETS: Mapping[str, ResNetShape] = {
    # The paper's network for pictures of 32 x 32 (section 4.2) at n = 1: 8 layers.
    "small": ResNetShape("basic", (1, 1, 1), (16, 32, 64), "small"),
    "resnet18": ResNetShape("basic", (2, 2, 2, 2), (64, 128, 256, 512), "large"),
    "resnet50": ResNetShape("bottleneck", (3, 4, 6, 3), (64, 128, 256, 512), "large"),
}


class ResNet(nn.Module):
    """Stem, stages of residual blocks, mean over the picture, linear head.

    Shapes: B pictures of C channels, H x W pixels; K classes.

    `initial_output` is the head's bias, shape [K]. `channels_last` keeps activations with the
    channels innermost, as convolutions on CPUs and tensor cores prefer.
    """

    def __init__(
        self,
        shape: ResNetShape,
        channels: int,
        initial_output: Tensor,
        *,
        dropout: float,
        channels_last: bool,
    ) -> None:
        super().__init__()
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.stem = _stem(shape, channels)
        blocks: list[nn.Module] = []
        width = shape.widths[0]
        for stage, (depth, inner) in enumerate(zip(shape.depths, shape.widths, strict=True)):
            for index in range(depth):
                stride = 2 if stage and not index else 1
                blocks.append(ResidualBlock(shape.block, width, inner, stride))
                width = inner * EXPANSION[shape.block]
        self.blocks = nn.ModuleList(blocks)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, len(initial_output))
        self._initialise(initial_output)

    def forward(self, image: Tensor) -> Tensor:
        """Pictures [B, C, H, W] → logits [B, K]."""
        hidden = self.stem(image.contiguous(memory_format=self.format))
        for block in self.blocks:
            hidden = block(hidden)
        return cast("Tensor", self.head(self.dropout(hidden.mean(dim=(2, 3)))))

    def _initialise(self, initial_output: Tensor) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                module.weight.data = module.weight.data.contiguous(memory_format=self.format)
        for block in self.blocks:
            # Each block starts as its shortcut (Goyal et al., 2017, section 5.1).
            last = cast("ResidualBlock", block).body[-1]
            nn.init.zeros_(cast("Tensor", last.weight))
        with torch.no_grad():
            self.head.weight.mul_(0.1)
            self.head.bias.copy_(initial_output)


class ResidualBlock(nn.Module):
    """Convolutions around a shortcut; the first of 3 x 3 has the stride.

    `basic`: two convolutions of 3 x 3. `bottleneck`: one between two of 1 x 1, and four times as
    many channels go out.
    """

    def __init__(
        self, kind: Literal["basic", "bottleneck"], channels: int, width: int, stride: int
    ) -> None:
        super().__init__()
        out = width * EXPANSION[kind]
        if kind == "basic":
            layers = [
                _convolution(channels, width, 3, stride),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                _convolution(width, width, 3),
                nn.BatchNorm2d(width),
            ]
        else:
            layers = [
                _convolution(channels, width, 1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                _convolution(width, width, 3, stride),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                _convolution(width, out, 1),
                nn.BatchNorm2d(out),
            ]
        self.body = nn.Sequential(*layers)
        self.shortcut = _shortcut(channels, out, stride)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, channels, H, W] → [B, channels out, H / stride, W / stride]."""
        return torch.relu(self.body(hidden) + self.shortcut(hidden))


def _stem(shape: ResNetShape, channels: int) -> nn.Sequential:
    width = shape.widths[0]
    size, stride = (7, 2) if shape.stem == "large" else (3, 1)
    layers = [_convolution(channels, width, size, stride), nn.BatchNorm2d(width), nn.ReLU()]
    if shape.stem == "large":
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    return nn.Sequential(*layers)


def _shortcut(channels: int, width: int, stride: int) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    return nn.Sequential(_convolution(channels, width, 1, stride), nn.BatchNorm2d(width))


def _convolution(channels: int, width: int, size: int, stride: int = 1) -> nn.Conv2d:
    # Without a bias: the normalisation behind it has one.
    return nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
