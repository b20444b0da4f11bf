"""Find degrees, hours and days that were given to a sine or cosine as if they were radians."""

import math

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_plain, repeat_row
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Floats, Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import inputs_of

VALUES = 256
FEWEST_VALUES = 12
# Two turns: what is known in radians has one.
SHORTEST_RANGE = 4 * math.pi
# Of the inputs' variance, left beside a sine and a cosine of the values: rounding to float32 leaves
# 1e-12, any other function of a dozen values leaves more.
ROUNDED = 1e-6
MOST_COLUMNS = 64


def judge_angles(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge a column of which inputs are sine or cosine, in radians; None if there is none.

    Over two turns and more, neighbouring values then have unrelated inputs, and distant ones alike.
    """
    rows, columns = subject.train_rows, subject.task.columns
    names = [name for name in columns.features if name != columns.label]
    for name in [name for name in names if _is_of_numbers(rows[name])][:MOST_COLUMNS]:
        column = rows[name].head(VALUES).explode() if rows[name].dtype.is_nested() else rows[name]
        values = column.drop_nulls().unique().sort()
        values = values.filter(values.cast(pl.Float64).is_finite())
        if len(values) < FEWEST_VALUES:
            continue
        values = values[np.linspace(0, len(values) - 1, VALUES).astype(int)].unique().sort()
        numbers = values.cast(pl.Float64).to_numpy()
        is_wide = len(numbers) >= FEWEST_VALUES and np.ptp(numbers) > SHORTEST_RANGE
        if is_wide and _is_sine(subject, values, numbers):
            low, high = numbers[[0, -1]]
            return judge.failed(
                f"inputs are the sine or cosine of {name} in radians, but it runs from {low:.4g} "
                f"to {high:.4g}",
                hint="scale to radians first: np.deg2rad for degrees, 2 * np.pi * hour / 24 for "
                "hours; neighbouring values have unrelated inputs now",
            )
    return None


def _is_of_numbers(column: pl.Series) -> bool:
    inner = getattr(column.dtype, "inner", column.dtype)
    return inner.is_numeric() and (column.dtype.is_nested() or is_plain(column))


def _is_sine(subject: Subject, values: pl.Series, numbers: Floats) -> bool:
    kind = subject.train_rows.schema[values.name]
    if kind.is_nested():  # a list of one number
        length = len(subject.train_rows[values.name].drop_nulls()[0])
        values = pl.Series(values.name, [[each] * length for each in values], dtype=kind)
    try:
        encoded = inputs_of(subject.task.encode(repeat_row(subject, values)))
    except Exception:  # values of one row in another may contradict its other columns
        return False
    waves = np.column_stack([np.sin(numbers), np.cos(numbers), np.ones(len(numbers))])
    for tensor in encoded.values():
        inputs = tensor.reshape(len(values), -1).double().numpy()[:, : 4 * MOST_COLUMNS]
        inputs = inputs[:, np.isfinite(inputs).all(axis=0)]
        centred = inputs - inputs.mean(axis=0)
        variance = np.square(centred).sum(axis=0)
        weights, *_ = np.linalg.lstsq(waves, inputs, rcond=None)
        left = np.square(inputs - waves @ weights).sum(axis=0)
        if bool(((variance > ROUNDED) & (left < ROUNDED * variance)).any()):
            return True
    return False
