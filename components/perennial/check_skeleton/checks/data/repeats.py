"""Whole rows that are in both splits, in tables in which no two rows agree by chance.

How often rows repeat each other does not show how often they agree by chance: a join that doubles
the table raises that, too. Nor does the product over single columns: a station determines its
latitude. The difference is in near copies: if rows repeat naturally, many more agree in all
columns but one.
"""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_plain
from perennial.check_skeleton.subject import Subject

FEWEST_COLUMNS = 3
MOST_COLUMNS = 64
FEWEST_COPIES = 20
# A stuck sensor repeats a few rows many times.
DIFFERENT_SHARE = 0.3
# Rows that agree in all columns but one, relative to those that agree in all.
NEARLY_SHARE = 0.1
# Variance of the rows' counts, relative to rows drawn at random from a pool.
EVEN = 0.7
FEWEST_REPEATED = 100
CLEAR_ERRORS = 4.0


def copied_share(subject: Subject) -> float:
    """Return the share of validation rows that copy training rows, including the label.

    0 if rows hold texts or lists, if few are copied, if a few rows make all copies, or if more
    rows agree in all columns but one.
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
    """Return the share of validation rows that copy training rows, if counts are too equal.

    Rows drawn at random from a pool occur once, twice or five times, as in a Poisson distribution,
    and with more variance if some are preferred. 0 if the counts vary as much.
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
    """Return columns without those that another determines, as a station its latitude."""
    different = rows.select(names).unique()
    values = {name: different[name].n_unique() for name in names}
    kept = list(names)
    for name in sorted(names, key=lambda each: values[each]):
        for other in kept:
            # Values that hardly ever repeat determine every column trivially.
            repeats = different.height - values[other]
            if other == name or values[other] < values[name] or repeats < FEWEST_COPIES:
                continue
            if different.select(name, other).n_unique() == values[other]:
                kept.remove(name)
                break
    return kept


def _shared(held: pl.DataFrame, train: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Return held-out rows that agree with a training row in these columns."""
    known = train.select(names).unique()
    return held.join(known, on=names, how="semi", nulls_equal=True)
