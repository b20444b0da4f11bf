"""Padding: what fills sequences up to one length, told from their content by its runs."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Columns of codes end alike in many rows, but not in runs of several lengths.
FEWEST_LENGTHS = 4


@dataclass(frozen=True)
class Padding:
    """What fills sequences up to one length.

    Attributes:
        code: The token that does.
        content: Tokens of each example that are no padding, [B].
        is_left: Whether it stands before them.
    """

    code: int
    content: Tensor
    is_left: bool

    def covers(self, length: int) -> Tensor:
        """Whether each position of examples of a length is padding, [B, T]."""
        places = torch.arange(length)
        if self.is_left:
            return places < length - self.content[:, None]
        return places >= self.content[:, None]


def padding_of(tokens: Tensor) -> Padding | None:
    """The runs of one code, of different lengths, that end or begin the examples [B, T]."""
    for is_left in (False, True):
        ends = tokens if is_left else tokens.flip(1)
        code = int(ends[:, 0].mode().values)
        runs = (ends == code).long().cumprod(dim=1).sum(dim=1)
        if len(np.unique(runs[runs > 1].numpy())) >= FEWEST_LENGTHS:
            return Padding(code, tokens.shape[1] - runs, is_left)
    return None
