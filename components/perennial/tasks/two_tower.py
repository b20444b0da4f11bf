"""Two towers (CLIP, Radford et al., 2021): pictures and texts as directions in one space."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from perennial.tasks.decoder import Block, DecoderOptions, Embedding, normalization

LARGEST_SCALE = 100.0  # CLIP's bound on the inverse temperature


class TextTower(nn.Module):
    """A causal transformer, read at each text's last token, where it has seen all of it."""

    def __init__(self, options: DecoderOptions, width: int) -> None:
        super().__init__()
        self.embedding = Embedding(options)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = normalization(options)
        self.projection = nn.Linear(options.width, width, bias=False)
        self._initialize()

    def forward(self, tokens: Tensor, length: Tensor) -> Tensor:
        """Ids [B, T] of texts with `length` [B] tokens → [B, D]."""
        stream = self.embedding(tokens)
        for block in self.blocks:
            stream = block(stream)
        last = stream[torch.arange(len(stream), device=stream.device), length - 1]
        return cast("Tensor", self.projection(self.norm(last)))

    @torch.no_grad()
    def _initialize(self) -> None:
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, 0.02)


class TwoTower(nn.Module):
    """A picture's and a text's direction; their product, times a learned scale, is the logit.

    Args:
        image: Pictures [B, C, H, W] → [B, D].
        text: The other tower, to the same D.
        temperature: Of the first logits.
    """

    def __init__(self, image: nn.Module, text: TextTower, *, temperature: float) -> None:
        super().__init__()
        self.image = image
        self.text = text
        self.log_scale = nn.Parameter(torch.tensor([-math.log(temperature)]))

    def forward(
        self, image: Tensor, tokens: Tensor | None = None, length: Tensor | None = None
    ) -> Tensor:
        """Scaled picture directions and text directions, [B, 2, D]; without texts [B, 1, D]."""
        scale = self.log_scale.exp().clamp(max=LARGEST_SCALE)
        pictures = functional.normalize(self.image(image).float(), dim=-1) * scale
        if tokens is None or length is None:
            return pictures[:, None]
        texts = functional.normalize(self.text(tokens, length).float(), dim=-1)
        return torch.stack([pictures, texts], dim=1)
