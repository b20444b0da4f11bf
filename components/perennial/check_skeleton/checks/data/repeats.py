"""Whole rows that stand in both splits, of tables in which no two rows agree by chance.

How often rows agree by chance is not known from how often they repeat each other: a join that
doubles the table raises that, too. Nor is it the product of what columns do one by one: a station
brings its latitude along. What tells copies from repeats is what lies between: rows that repeat
by nature have many more that agree in all columns but one.
"""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_plain
from perennial.check_skeleton.subject import Subject

FEWEST_COLUMNS = 3
MOST_COLUMNS = 64
FEWEST_COPIES = 20
# A sensor that is stuck repeats a few rows many times.
DIFFERENT_SHARE = 0.3
# Rows that agree but for one column, of those that agree in all.
NEARLY_SHARE = 0.1
# How unequal the counts of rows are, of what they are where rows are drawn from a pool.
EVEN = 0.7
FEWEST_REPEATED = 100
CLEAR_ERRORS = 4.0


def copied_share(subject: Subject) -> float:
    """The share of validation rows that are copies of training rows, label and all.

    0 where rows hold texts or lists, where few are copied, where a few rows make the copies, and
    where nearly as many agree in all columns but one.
    """
    columns = subject.task.columns
    names = list(dict.fromkeys((*columns.features, columns.label)))
    train, held = (rows.select(names) for rows in (subject.train_rows, subject.validation_rows))
    if not FEWEST_COLUMNS <= len(names) - 1 <= MOST_COLUMNS or not all(map(is_plain, train)):
        return 0.0
    copies = _shared(held, train, names)
    found = copies.height
    if found < FEWEST_COPIES or copies.n_unique() < max(DIFFERENT_SHARE * found, FEWEST_COPIES):
        return 0.0
    basis = [*independent_columns(train, list(columns.features)), columns.label]
    for name in basis:
        others = [each for each in basis if each != name]
        if not others or _shared(held, train, others).height > (1 + NEARLY_SHARE) * found:
            return 0.0
    return found / held.height


def multiplied_share(subject: Subject) -> float:
    """The share of validation rows that are copies of training rows, where all have as many.

    What is drawn again and again from a pool comes once, twice or five times, as in a Poisson
    distribution, and the more unequally the more some are preferred. 0 where rows are as unequal.
    """
    columns = subject.task.columns
    names = list(dict.fromkeys((*columns.features, columns.label)))
    train, held = (
        rows.select(names).hash_rows() for rows in (subject.train_rows, subject.validation_rows)
    )
    counts = pl.concat([train, held]).value_counts()["count"].to_numpy().astype(np.float64)
    if (counts > 1).sum() < FEWEST_REPEATED:
        return 0.0
    mean = counts.mean()
    rate = mean
    for _ in range(100):  # of a Poisson distribution without its zeros that has this mean
        rate = mean * (1 - np.exp(-rate))
    unequal = counts.var() / max(mean * (1 + rate - mean), 1e-9)
    if unequal > min(EVEN, 1 - CLEAR_ERRORS * np.sqrt(2 / len(counts))):
        return 0.0
    return float(held.is_in(train.unique().implode()).mean() or 0.0)  # type: ignore[arg-type]


def independent_columns(rows: pl.DataFrame, names: list[str]) -> list[str]:
    """Columns without those that another one decides, as a station decides its latitude."""
    different = rows.select(names).unique()
    values = {name: different[name].n_unique() for name in names}
    kept = list(names)
    for name in sorted(names, key=lambda each: values[each]):
        for other in kept:
            # Values that hardly ever repeat decide everything, and say nothing.
            repeats = different.height - values[other]
            if other == name or values[other] < values[name] or repeats < FEWEST_COPIES:
                continue
            if different.select(name, other).n_unique() == values[other]:
                kept.remove(name)
                break
    return kept


def _shared(held: pl.DataFrame, train: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Held rows that agree with a training row in these columns."""
    known = train.select(names).unique()
    return held.join(known, on=names, how="semi", nulls_equal=True)
