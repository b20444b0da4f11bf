"""The tabular tasks' model: a known architecture, with a first output that is known too."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn


class TabularMLP(nn.Module):
    """Embeddings and numbers, concatenated, through hidden layers of linear, ReLU, dropout.

    Shapes: B examples, N numbers, K categorical columns, O outputs.
    """

    def __init__(
        self,
        num_numbers: int,
        category_sizes: Sequence[int],
        initial_output: Tensor,
        *,
        hidden: Sequence[int],
        dropout: float,
        embedding_size: int,
    ) -> None:
        super().__init__()
        widths = [min(embedding_size, (size + 1) // 2) for size in category_sizes]
        self.embeddings = nn.ModuleList(
            nn.Embedding(size, width) for size, width in zip(category_sizes, widths, strict=True)
        )
        width = num_numbers + sum(widths)
        layers: list[nn.Module] = []
        for next_width in hidden:
            layers += [nn.Linear(width, next_width), nn.ReLU(), nn.Dropout(dropout)]
            width = next_width
        self.hidden = nn.Sequential(*layers)
        self.output = nn.Linear(width, len(initial_output))
        for embedding in self.embeddings:
            nn.init.normal_(cast("Tensor", embedding.weight), std=0.1)
        with torch.no_grad():
            self.output.weight.mul_(0.1)
            self.output.bias.copy_(initial_output)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Numbers [B, N] and category codes [B, K] → outputs [B, O]."""
        vectors = [embed(categories[:, column]) for column, embed in enumerate(self.embeddings)]
        return cast("Tensor", self.output(self.hidden(torch.cat([numbers, *vectors], dim=1))))
