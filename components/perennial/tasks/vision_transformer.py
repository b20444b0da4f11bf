"""ViT (Dosovitskiy et al., 2020): a transformer over the patches of a picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


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

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, T, D] → [B, T, D]."""
        hidden = hidden + self.dropout(self._attend(self.attention_norm(hidden)))
        return cast("Tensor", hidden + self.perceptron(hidden))

    def _attend(self, hidden: Tensor) -> Tensor:
        batch, tokens, width = hidden.shape
        joined = self.queries_keys_values(hidden).view(batch, tokens, 3, self.heads, -1)
        queries, keys, values = joined.permute(2, 0, 3, 1, 4)  # each [B, heads, T, D / heads]
        attended = scaled_dot_product_attention(queries, keys, values)
        joined = attended.transpose(1, 2).reshape(batch, tokens, width)
        return cast("Tensor", self.projection(joined))
