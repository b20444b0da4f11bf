"""Padding: the token that fills sequences to one length, found by its runs at their ends."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Columns of codes have equal ends in many rows, but not runs of several lengths.
FEWEST_LENGTHS = 4


@dataclass(frozen=True)
class Padding:
    """The token that fills sequences to one length.

    Attributes:
        code: The token.
        content: Number of other tokens of each example, [B].
        is_left: Whether padding comes first.
    """

    code: int
    content: Tensor
    is_left: bool

    def covers(self, length: int) -> Tensor:
        """Return whether each position of examples of a length is padding, [B, T]."""
        places = torch.arange(length)
        if self.is_left:
            return places < length - self.content[:, None]
        return places >= self.content[:, None]


def padding_of(tokens: Tensor) -> Padding | None:
    """Return the code whose runs of different lengths end or begin the examples [B, T]."""
    for is_left in (False, True):
        ends = tokens if is_left else tokens.flip(1)
        code = int(ends[:, 0].mode().values)
        runs = (ends == code).long().cumprod(dim=1).sum(dim=1)
        if len(np.unique(runs[runs > 1].numpy())) >= FEWEST_LENGTHS:
            return Padding(code, tokens.shape[1] - runs, is_left)
    return None
