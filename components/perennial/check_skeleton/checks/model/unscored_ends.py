"""Find texts whose end is not in the loss: a model that never has to predict one cannot stop."""

from dataclasses import dataclass

import torch
from torch import Tensor

from perennial.check_skeleton.subject import find_padding
from perennial.engine.task import Batch, inputs_of

FEWEST_TEXTS = 16
# Of the texts with room behind their last target: nearly all end alike if an end is learned.
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class UnscoredEnd:
    """Texts whose last target is a word of theirs."""

    description: str
    is_marked: bool  # the inputs have an end, and the loss leaves it out


def find_unscored_end(batch: Batch, name: str, wanted: Tensor) -> UnscoredEnd | None:
    """Return how the texts of a batch end without a target; None if an end is a target.

    Args:
        batch: The examples.
        name: Name of their tokens, [B, T].
        wanted: The token after each position where the loss asks for it, [B, T]; else negative.
    """
    tokens, is_asked = batch[name], wanted >= 0
    padding = find_padding(tokens)
    if padding is None or padding.is_left:
        return None
    last = tokens.shape[1] - 1 - is_asked.long().flip(1).argmax(dim=1)
    rows = torch.arange(len(tokens))[is_asked.any(dim=1) & (last < tokens.shape[1] - 3)]
    if len(rows) < FEWEST_TEXTS:
        return None
    last = last[rows]
    if _measure_commonest(wanted[rows, last]) >= NEARLY_ALL:
        return None
    # The input at `last + 1` is the last target.
    following = tokens[rows, last + 2]
    if following.mode().values != padding.code and _measure_commonest(following) >= NEARLY_ALL:
        return UnscoredEnd(
            f"{len(rows)} texts end with token {int(following.mode().values)}, which is no target "
            "of the loss",
            is_marked=True,
        )
    for other, tensor in inputs_of(batch).items():
        if _covers(tensor, tokens, rows, last + 2):
            return UnscoredEnd(
                f"{other} counts a token more than the last target of {len(rows)} texts",
                is_marked=True,
            )
    return UnscoredEnd(
        f"the last target of {len(rows)} texts is a word of theirs, and padding follows",
        is_marked=False,
    )


def _measure_commonest(codes: Tensor) -> float:
    return float((codes == codes.mode().values).double().mean())


def _covers(tensor: Tensor, tokens: Tensor, rows: Tensor, places: Tensor) -> bool:
    """Whether a mask [B, T], or lengths [B], counts these places as the last of their rows."""
    if tensor.shape == tokens.shape and bool(((tensor == 0) | (tensor == 1)).all()):
        lengths = tensor.double().sum(dim=1)
    elif tensor.ndim == 1 and len(tensor) == len(tokens):
        lengths = tensor.double()
    else:
        return False
    return float((lengths[rows] == places + 1).double().mean()) >= NEARLY_ALL
