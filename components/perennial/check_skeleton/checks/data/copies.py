"""Copies across splits, of examples and of entities, that chance does not explain."""

import math

import polars as pl

from perennial.check_skeleton.checks.data.repeats import MOST_COLUMNS, independent_columns
from perennial.check_skeleton.checks.data.signals import (
    groups_of,
    is_plain,
    probed_rows,
    signal_of,
)
from perennial.check_skeleton.subject import Subject

# Columns depend on each other, so only half of their separate bits are counted.
BITS_COUNTED = 0.5
BEYOND_CHANCE = 10.0
FEWEST_GROUPS = 20
# Nearly all rows of a group have one label: a model that knows the group knows the label.
SAME_LABEL = 0.9
SHARED_SHARE = 0.5


def expected_by_chance(subject: Subject) -> float:
    """Return the share of examples that repeat a training example by chance.

    From how often different rows agree in each column that no other column determines; for texts,
    in each word.
    """
    rows = subject.train_rows.select(list(subject.task.columns.features)).unique()
    plain = [each.name for each in rows if is_plain(each)][:MOST_COLUMNS]
    decided = set(plain) - set(independent_columns(rows, plain))
    rows = rows.drop(decided)
    bits = 0.0
    for column in rows:
        if column.dtype == pl.String and (words := column.drop_nulls().str.split(" ")).len():
            typical = float(words.list.len().median() or 1.0)  # type: ignore[arg-type]
            bits += typical * -math.log2(max(_agreement(words.explode()), 1e-12))
        else:
            bits += -math.log2(max(_agreement(column), 1e-12))
    return float(min(1.0, subject.num_rows() * 2.0 ** (-BITS_COUNTED * bits)))


def _agreement(column: pl.Series) -> float:
    """Return how often two different entries of a column are equal."""
    counts = column.to_frame("value").group_by("value").len()["len"].to_numpy().astype(float)
    total = float(counts.sum())
    return float((counts * (counts - 1)).sum()) / max(total * (total - 1), 1.0)


def find_shared_entity(subject: Subject) -> tuple[str, float, float]:
    """Find a column whose values have one label each and occur in both splits.

    Returns:
        Its name, the share of the label it explains, and the share of validation rows it covers.
        Empty if the contract names a group, or no column is one.
    """
    data, none = subject.data, ("", 0.0, 0.0)
    if data is None or data.group is not None or subject.task.kind == "statistic":
        return none
    rows, labels = probed_rows(subject)
    for name in dict.fromkeys((*data.meta, *data.ids, *subject.task.columns.features)):
        column = rows[name] if name in rows.columns else None
        if column is None or not (column.dtype.is_integer() or column.dtype == pl.String):
            continue
        values = column.n_unique()
        if not FEWEST_GROUPS <= values <= rows.height / 2:
            continue
        ranks = column.rank("dense").cast(pl.Int64).fill_null(0).to_numpy()
        # The share that as many random groups leave to explain.
        left = 1 - (values - 1) / (rows.height - 1)
        explained = signal_of(ranks, labels).share / left
        # An amount that predicts the label does so in bins, too; an entity's name does not.
        in_order = signal_of(groups_of(column), labels).share if column.dtype.is_integer() else 0.0
        held = subject.validation_rows[name]
        shared = float(held.is_in(column.unique().implode()).mean() or 0.0)  # type: ignore[arg-type]
        if explained > SAME_LABEL and in_order < SAME_LABEL / 2 and shared > SHARED_SHARE:
            return name, explained, shared
    return none
