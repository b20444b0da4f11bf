"""Find classes whose rows were repeated before the split, as by oversampling, under new row ids."""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_ordered, is_plain
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject
from perennial.contracts.errors import join_names
from perennial.contracts.skeleton import CheckResult

MOST_CLASSES = 50
FEWEST_DIFFERENT, FEWEST_PLAIN = 20, 100
# Of the rows of a class: a sample leaves out some of the copies.
MOSTLY, HARDLY = 0.5, 0.01
# Of a class's different rows: amounts and times that hardly ever agree.
DISTINCT = 0.9


def judge_repeated_class(judge: Judge, subject: Subject) -> CheckResult | None:
    """Fail on classes of which most rows have copies, while the commonest has none."""
    if not (found := describe_repeated_class(subject)):
        return None
    return judge.failed(
        found,
        hint="a class was oversampled before the split, and validation rows as well: metrics are "
        "those of another share of the class, and copies count as rows of their own. Remove the "
        "copies; repeat rows in training alone, or weight them",
    )


def describe_repeated_class(subject: Subject) -> str:
    """Describe classes whose rows come several times in both splits; empty if there are none.

    Rows are copies if they are equal in all columns but those that have no value twice. Natural
    repeats agree in few values: of amounts or times that hardly repeat, one must be equal.
    """
    label = subject.task.columns.label
    train, held = subject.train_rows, subject.validation_rows
    both = pl.concat([train, held])
    if not is_plain(both[label]) or both[label].dtype.is_float():
        return ""
    if not 2 <= both[label].n_unique() <= MOST_CLASSES or both[label].null_count():
        return ""
    names = [each.name for each in both if each.n_unique() < both.height]
    keys = both.select(names).hash_rows()
    rows = both.with_columns(
        pl.lit(np.arange(both.height) >= train.height).alias("__held__"),
        pl.lit(keys.is_duplicated()).alias("__copied__"),
        pl.lit(keys.is_first_distinct()).alias("__first__"),
    )
    shares = rows.group_by(label).agg(
        different=pl.col("__first__").sum(),
        train=pl.col("__copied__").filter(~pl.col("__held__")).mean().fill_null(0.0),
        held=pl.col("__copied__").filter(pl.col("__held__")).mean().fill_null(0.0),
    )
    commonest = shares.sort("different", label, descending=True).row(0, named=True)
    is_plain_class = max(commonest["train"], commonest["held"]) <= HARDLY
    if commonest["different"] < FEWEST_PLAIN or not is_plain_class:
        return ""
    repeated = shares.filter(
        pl.col("different") >= FEWEST_DIFFERENT, pl.min_horizontal("train", "held") >= MOSTLY
    ).sort(label)
    first = rows.filter("__first__").drop("__held__", "__copied__", "__first__")
    classes = [*repeated[label], commonest[label]]
    distinct = [
        name
        for name in names
        if name != label
        and is_ordered(both[name])
        and all(_is_distinct(first.filter(pl.col(label) == each)[name]) for each in classes)
    ]
    if repeated.is_empty() or not distinct:
        return ""
    named = join_names([str(each) for each in repeated[label]])
    train_share, held_share = (float(repeated[each].to_numpy().min()) for each in ("train", "held"))
    return (
        f"{train_share:.0%} of the training rows of {label} {named}, and {held_share:.0%} of the "
        "validation rows, have a copy that is equal in all columns but row ids, "
        f"{join_names(distinct)} among them; {commonest['train']:.1%} of {commonest[label]} "
        "have one"
    )


def _is_distinct(values: pl.Series) -> bool:
    return values.drop_nulls().n_unique() >= DISTINCT * len(values)
