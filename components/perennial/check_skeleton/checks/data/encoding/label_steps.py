"""Find lists of numbers, such as forecasts of several steps, that are encoded in another order."""

import numpy as np
import polars as pl
from torch import Tensor

from perennial.check_skeleton.subject import Floats

# Of ranks: a code made of one number alone, by any rising or falling function, has 1.
SAME = 1 - 1e-9
FEWEST_ROWS = 16


def describe_moved_steps(raw: pl.Series, encoded: Tensor) -> str:
    """Describe codes [B, H] that are made of another number of the list; empty if none is.

    Codes made of several numbers, as differences between them are, are not judged.
    """
    numbers = _read_numbers(raw, encoded)
    if numbers is None or len(numbers) < FEWEST_ROWS:
        return ""
    steps = numbers.shape[1]
    ranks = _rank(np.concatenate([numbers, encoded.double().numpy()], axis=1))
    with np.errstate(invalid="ignore"):  # a number that never changes has no correlation
        alike = np.abs(np.nan_to_num(np.corrcoef(ranks.T)))[:steps, steps:]
    own, best = alike.diagonal(), alike.argmax(axis=0)
    moved = (own < SAME) & (alike.max(axis=0) >= SAME)
    if not moved.any():
        return ""
    first = int(moved.argmax())
    return (
        f"{moved.sum()} of {steps} numbers of the label are encoded at another place: at place "
        f"{first + 1} is number {best[first] + 1} of the list"
    )


def _read_numbers(raw: pl.Series, encoded: Tensor) -> Floats | None:
    """Return the lists as an array [B, H]; None if they are not as many numbers as codes."""
    inner = getattr(raw.dtype, "inner", None)
    if not isinstance(raw.dtype, pl.List | pl.Array) or inner is None or not inner.is_numeric():
        return None
    lists = raw.cast(pl.List(pl.Float64))
    is_alike = bool((lists.list.len() == encoded.shape[1]).all())
    if encoded.ndim != 2 or not is_alike:
        return None
    numbers = lists.explode().to_numpy().reshape(len(raw), -1)
    return numbers if np.isfinite(numbers).all() else None


def _rank(columns: Floats) -> Floats:
    return pl.from_numpy(columns).select(pl.all().rank()).to_numpy()
