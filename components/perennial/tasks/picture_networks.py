"""Picture networks: ResNet and ViT, their options, and the network for pictures of a known form.

ResNet (He et al., 2015) is residual convolutions, for pictures of any size; ViT (Dosovitskiy et
al., 2020) a transformer over the patches of a picture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from perennial.contracts.data import ColumnName
from perennial.contracts.errors import BadTaskError
from perennial.engine.task import MeasuredOptions
from perennial.tasks.columns.image_columns import ImageState


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


@dataclass(frozen=True)
class ViTShape:
    """What tells one ViT from another.

    Attributes:
        patch: Height and width of a patch, in pixels.
        heads: Of the attention; they divide `width`.
        pooling: `mean` over the patches, or an extra class `token`.
    """

    patch: int
    width: int
    depth: int
    heads: int
    pooling: Literal["mean", "token"]


VITS: Mapping[str, ViTShape] = {
    "small": ViTShape(patch=2, width=64, depth=4, heads=4, pooling="mean"),
    # DeiT's names and sizes (Touvron et al., 2020, table 1).
    "vit_tiny": ViTShape(patch=16, width=192, depth=12, heads=3, pooling="token"),
    "vit_small": ViTShape(patch=16, width=384, depth=12, heads=6, pooling="token"),
}
_MLP_RATIO = 4
_INITIAL_DEVIATION = 0.02


class VisionTransformer(nn.Module):
    """Patches, learned positions, pre-norm blocks, pooling, linear head.

    Shapes: B pictures of C channels, H x W pixels; T tokens of width D; K classes.

    `size` is C, H and W, multiples of the patch; `initial_output` is the head's bias, shape [K].
    """

    def __init__(
        self, shape: ViTShape, size: tuple[int, int, int], initial_output: Tensor, *, dropout: float
    ) -> None:
        super().__init__()
        channels, height, width = size
        patches = (height // shape.patch) * (width // shape.patch)
        self.has_token = shape.pooling == "token"
        self.patches = nn.Conv2d(channels, shape.width, shape.patch, stride=shape.patch)
        self.positions = nn.Parameter(torch.empty(patches + self.has_token, shape.width))
        if self.has_token:
            self.token = nn.Parameter(torch.zeros(shape.width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(shape.width, shape.heads, dropout) for _ in range(shape.depth)
        )
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, len(initial_output))
        self._initialise(initial_output)

    def forward(self, image: Tensor) -> Tensor:
        """Pictures [B, C, H, W] → logits [B, K]."""
        tokens = self.patches(image).flatten(2).transpose(1, 2)  # [B, T, D]
        if self.has_token:
            # Under autocast the convolution returns a shorter type, while parameters stay in
            # float32.
            tokens = torch.cat([self.token.to(tokens.dtype).expand(len(image), 1, -1), tokens], 1)
        hidden = self.dropout(tokens + self.positions.to(tokens.dtype))
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.norm(hidden)
        pooled = hidden[:, 0] if self.has_token else hidden.mean(dim=1)
        return cast("Tensor", self.head(pooled))

    def _initialise(self, initial_output: Tensor) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=_INITIAL_DEVIATION)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.positions, std=_INITIAL_DEVIATION)
        with torch.no_grad():
            self.head.bias.copy_(initial_output)


class TransformerBlock(nn.Module):
    """Attention between tokens, then a perceptron on each; both normalised before, both added."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, _MLP_RATIO * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(_MLP_RATIO * width, width),
            nn.Dropout(dropout),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """[B, T, D] → [B, T, D]; no token looks at those where the mask [B, 1, 1, T] is false."""
        hidden = hidden + self.dropout(self._attend(self.attention_norm(hidden), mask))
        return cast("Tensor", hidden + self.perceptron(hidden))

    def _attend(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, width = hidden.shape
        joined = self.queries_keys_values(hidden).view(batch, tokens, 3, self.heads, -1)
        queries, keys, values = joined.permute(2, 0, 3, 1, 4)  # each [B, heads, T, D / heads]
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        joined = attended.transpose(1, 2).reshape(batch, tokens, width)
        return cast("Tensor", self.projection(joined))


PositiveInt = Annotated[int, Field(ge=1)]
NetworkShape = ResNetShape | ViTShape
PRESETS: Mapping[str, Mapping[str, NetworkShape]] = {"resnet": RESNETS, "vit": VITS}


class PictureColumnOptions(MeasuredOptions):
    """Options that set where the pictures are, and their form."""

    image: ColumnName | None = None
    """The feature column with the pictures; None means the only feature, beside a caption."""
    shape: tuple[PositiveInt, ...] = ()
    """Height and width, and 3 for colour, of pictures that come as flat lists of numbers."""
    size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width that encoded pictures are scaled to; None takes them as they are and refuses
    pictures of another size. Set it when sizes differ."""


class PictureOptions(PictureColumnOptions):
    """Options of tasks that read pictures with a network of their own."""

    architecture: Literal["resnet", "vit"] = "resnet"
    """`resnet` for up to about 100,000 pictures; `vit` needs more of them, or augmentation."""
    preset: Literal["small", "resnet18", "resnet50", "vit_tiny", "vit_small"] = "small"
    """`small` suits pictures of 8 to 32 pixels, the others those of 64 to 256."""

    @model_validator(mode="after")
    def _has_preset(self) -> Self:
        presets = PRESETS[self.architecture]
        if self.preset not in presets:
            raise ValueError(
                f"preset = {self.preset!r} is not a preset of {self.architecture}; choose "
                f"{', '.join(presets)}"
            )
        return self

    @property
    def network_shape(self) -> NetworkShape:
        """Return the preset."""
        return PRESETS[self.architecture][self.preset]


def picture_network(
    shape: NetworkShape,
    images: ImageState,
    initial_output: Tensor,
    *,
    dropout: float = 0.0,
    channels_last: bool = False,
) -> nn.Module:
    """Build a network for pictures of a known form; its last layer starts at `initial_output`.

    Raises:
        BadTaskError: the patches of a ViT do not divide the pictures.
    """
    if isinstance(shape, ResNetShape):
        return ResNet(
            shape, images.channels, initial_output, dropout=dropout, channels_last=channels_last
        )
    patch = shape.patch
    if images.height % patch or images.width % patch:
        raise BadTaskError(
            f"pictures of {images.height} x {images.width} cannot be cut into patches of "
            f"{patch} x {patch}",
            action="choose another preset in model.options (model.options.vit.patch, where the "
            "task has it), or set model.options.size to a multiple",
        )
    size = (images.channels, images.height, images.width)
    return VisionTransformer(shape, size, initial_output, dropout=dropout)


def picture_blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Return the residual or transformer blocks of a network, in forward order."""
    kinds = ResidualBlock | TransformerBlock
    return [module for module in model.modules() if isinstance(module, kinds)]
