"""Find frequent texts that `encode` takes for unknown, though it knows rarer ones."""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_plain, repeat_row
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject, compute_example_keys
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import inputs_of

MADE_UP = ("\N{SNOWMAN} never seen", "\N{SNOWMAN} nor this")
FEWEST_VALUES, MOST_VALUES = 10, 2_000
FEWEST_UNKNOWN = 3
# A vocabulary of the most frequent values knows every value of more rows than those it knows.
UNKNOWN_SHARE = 0.1


def judge_unknown_texts(judge: Judge, subject: Subject) -> CheckResult | None:
    """Fail a column whose values are unknown to `encode`, and not for being rare.

    They have the same inputs as two texts that nobody wrote, and more rows than half of the known
    values. None if there is no such column.
    """
    for name in subject.task.columns.features:
        column = subject.train_rows[name]
        if column.dtype != pl.String or not is_plain(column):
            continue
        counts = column.drop_nulls().alias("value").value_counts(sort=True).head(MOST_VALUES)
        if counts.height < FEWEST_VALUES:
            continue
        values = pl.Series(name, [*counts["value"], *MADE_UP], dtype=pl.String)
        try:
            encoded = subject.task.encode(repeat_row(subject, values))
            keys = compute_example_keys(inputs_of(encoded))
        except Exception:  # a task may reject what it does not know
            continue
        *own, first, second = np.unique(keys, return_inverse=True)[1].tolist()
        is_unknown, rows = np.array(own) == first, counts["count"].to_numpy()
        if first != second or is_unknown.all():
            continue
        is_frequent = is_unknown & (rows > np.median(rows[~is_unknown]))
        share = rows[is_frequent].sum() / rows.sum()
        if is_frequent.sum() >= FEWEST_UNKNOWN and share > UNKNOWN_SHARE:
            example = counts["value"][int(is_frequent.argmax())]
            return judge.failed(
                f"{is_unknown.sum()} of {len(rows)} values of {name}, in "
                f"{rows[is_unknown].sum() / rows.sum():.0%} of the rows, are encoded like a value "
                f"that was never seen: {example!r} has {rows[is_frequent].max()} rows, and rarer "
                "ones are known",
                hint="the vocabulary was made of the first rows, of another split, or in another "
                "order than by frequency: learn it in fit(train) from all rows",
            )
    return None
