"""Whole rows that stand in both splits, of tables in which no two rows agree by chance.

How often rows agree by chance is not known from how often they repeat each other: a join that
doubles the table raises that, too. Nor is it the product of what columns do one by one: a station
brings its latitude along. What tells copies from repeats is what lies between: rows that repeat
by nature have many more that agree in all columns but one.
"""

import polars as pl

from components.check_skeleton.checks.data.signals import is_plain
from components.check_skeleton.subject import Subject

FEWEST_COLUMNS = 3
MOST_COLUMNS = 64
FEWEST_COPIES = 20
# A sensor that is stuck repeats a few rows many times.
DIFFERENT_SHARE = 0.3
# Rows that agree but for one column, of those that agree in all.
NEARLY_SHARE = 0.1


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
