"""Find lists of numbers of which one end of the range becomes one input, as by a misplaced limit.

A logarithm or a limit that comes after the scaling in place of before it leaves nothing of all
numbers below the mean. What is cut matters if it predicts the label beside what is kept.
"""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import (
    group_values,
    measure_signal,
    probe_rows,
    read_labels,
    repeat_row,
)
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject, compute_example_keys
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import inputs_of

TRIED, FEWEST = 256, 20
# Of the numbers tried, which are as frequent as each other: outliers and noise are fewer.
CUT_SHARE = 0.3
# Of what the cut numbers of a row predict of its label, and of the label's variance.
LOST_SHARE, WORTH_SHARE, CLEAR_ERRORS = 0.25, 0.01, 5.0


def judge_cut_numbers(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge whether one end of the range of a list's numbers is lost; None if it is not."""
    if not read_labels(subject):
        return None
    for name in subject.task.columns.features:
        column = subject.train_rows[name]
        kind = column.dtype
        if not isinstance(kind, pl.List | pl.Array) or not kind.inner.is_numeric():
            continue
        cut = _find_cut(subject, column)
        if cut is None:
            continue
        low, high, share = cut
        part = _measure_loss(subject, name, low, high)
        if part >= LOST_SHARE:
            return judge.failed(
                f"{share:.0%} of the numbers in {name}, from {low:.4g} to {high:.4g}, become the "
                f"same input, the others keep their own; {part:.0%} of what they predict of the "
                "label is lost",
                hint="a limit in the units of the data comes after the scaling, or a logarithm of "
                "scaled numbers is kept from NaN by a limit: scale last",
            )
    return None


def _find_cut(subject: Subject, column: pl.Series) -> tuple[float, float, float] | None:
    """Return the numbers at one end that become one input: lowest, highest, share of all."""
    numbers = column.explode().cast(pl.Float64).drop_nulls()
    numbers = numbers.filter(numbers.is_finite())
    if not len(numbers):
        return None
    levels = np.linspace(0, 1, TRIED)
    tried = np.unique(np.quantile(numbers.to_numpy(), levels, method="nearest"))
    if len(tried) <= FEWEST:
        return None
    longest = int(column.list.len().arg_max() or 0) if column.dtype == pl.List else 0
    own = list(column[longest])
    middle, inner = len(own) // 2, column.dtype.inner  # type: ignore[attr-defined]
    values = pl.Series(tried).cast(inner).to_list()
    lists = [[*own[:middle], value, *own[middle + 1 :]] for value in values]
    try:
        rows = repeat_row(subject, pl.Series(column.name, lists, dtype=column.dtype))
        keys = compute_example_keys(inputs_of(subject.task.encode(rows)))
    except Exception:  # numbers of one row may contradict its other columns
        return None
    _, codes, counts = np.unique(keys, return_inverse=True, return_counts=True)
    merged = np.flatnonzero(codes == counts.argmax())
    share = len(merged) / len(tried)
    is_end = merged[0] == 0 or merged[-1] == len(tried) - 1
    is_range = len(merged) == merged[-1] - merged[0] + 1
    # Where nothing is read of this place, encode may take others.
    if len(counts) == 1 or share < CUT_SHARE or len(merged) < FEWEST or not (is_end and is_range):
        return None
    return float(tried[merged[0]]), float(tried[merged[-1]]), share


def _measure_loss(subject: Subject, name: str, low: float, high: float) -> float:
    """Return the share of the cut numbers' signal that the other numbers of a row do not have."""
    rows, labels = probe_rows(subject)
    number = pl.element().cast(pl.Float64).fill_nan(None)
    is_cut = number.is_between(low, high)
    lists = rows[name].cast(pl.List(pl.Float64))
    cut, kept = (
        group_values(lists.list.eval(each).list.mean().fill_null(low))
        for each in (number.clip(low, high), pl.when(is_cut).then(low).otherwise(number))
    )
    alone, beside = measure_signal(cut, labels), measure_signal(cut, labels, kept)
    is_clear = beside.errors > CLEAR_ERRORS and beside.share > WORTH_SHARE
    return beside.share / max(alone.share, 1e-9) if is_clear else 0.0
