"""Labels relative to their own row: scaled by its window, or counted from its last value."""

import polars as pl
import torch
from torch import Tensor

from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL

# Codes may be clipped, so that some do not follow.
FOLLOWING_SHARE = 0.9
ROUNDING = 1e-5


def are_relative(subject: Subject, rows: pl.DataFrame) -> bool:
    """Whether each code is made from its own row alone, and changes with the label's value there.

    The label's values are raised and lowered, in all rows and in every other row: codes that are
    shuffled, shifted, random or another column's do not change, or change with other rows.

    Args:
        subject: The subject, whose labels have several codes for one value.
        rows: A few rows of the training sample.
    """
    values = rows[subject.task.columns.label]
    if not _holds_numbers(values):
        return False
    reach = _reach(values)
    ids = [name for name in (subject.data.ids if subject.data else ()) if name in rows.columns]
    try:
        own, high, low = (
            _codes(subject, rows, _moved(values, distance)) for distance in (0.0, reach, -reach)
        )
        half = _codes(subject, rows, _moved(values, reach, every=2))
        other_ids = rows.with_columns(rows[name].reverse() for name in ids)
        unnamed = _codes(subject, other_ids, values)
    except Exception:  # user code may refuse values that the data does not hold
        return False
    if not low.isfinite().all():  # a logarithm, for example
        low = own
    return (
        _are_close(own, unnamed)
        and _are_close(half[::2], high[::2])
        and _are_close(half[1::2], own[1::2])
        and _follows(low, high)
    )


def _follows(low: Tensor, high: Tensor) -> bool:
    """Whether higher values have higher codes in nearly every row, or lower codes in all."""
    change = (high - low).flatten(1)
    change[change.abs() <= ROUNDING * (1 + low.flatten(1).abs())] = 0.0
    is_one_way = bool((change >= 0).all() or (change <= 0).all())
    return is_one_way and float((change != 0).any(dim=1).double().mean()) >= FOLLOWING_SHARE


def _codes(subject: Subject, rows: pl.DataFrame, values: pl.Series) -> Tensor:
    codes = subject.task.encode(rows.with_columns(values))[LABEL].double()
    return codes.unsqueeze(1) if codes.ndim == 1 else codes


def _are_close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)


def _holds_numbers(values: pl.Series) -> bool:
    inner = getattr(values.dtype, "inner", values.dtype)
    return bool(inner.is_numeric())


def _reach(values: pl.Series) -> float:
    """Return the range of the values, at least 1."""
    numbers = values.explode() if values.dtype.is_nested() else values
    numbers = numbers.drop_nulls().cast(pl.Float64)
    numbers = numbers.filter(numbers.is_finite())
    return max(float(numbers.max() - numbers.min()), 1.0) if len(numbers) else 1.0  # type: ignore[operator,arg-type]


def _moved(values: pl.Series, distance: float, every: int = 1) -> pl.Series:
    """Move the value of every `every`-th row by a distance; keep the type.

    If the type cannot hold the moved values, all stay unchanged.
    """

    def moved(value: object) -> object:
        if isinstance(value, list):
            return [moved(each) for each in value]
        return type(value)(value + distance) if isinstance(value, int | float) else value

    listed = values.to_list()
    changed = [moved(each) if row % every == 0 else each for row, each in enumerate(listed)]
    found = pl.Series(values.name, changed, dtype=values.dtype, strict=False)
    return values if found.null_count() > values.null_count() else found
