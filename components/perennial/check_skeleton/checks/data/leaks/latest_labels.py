"""Find columns with the latest label of a group in all of its rows, joined without the time."""

from collections.abc import Iterator

import polars as pl

from perennial.check_skeleton.checks.data.signals import is_name, is_plain
from perennial.check_skeleton.subject import Subject

# Groups whose label changes: in others, what describes the group tells its label anyway.
FEWEST_GROUPS = 30
MOST_VALUES = 20
NEARLY_ALL = 0.98


def describe_latest_label(subject: Subject) -> str:
    """Name a feature from which the latest label of each group follows, in its earlier rows, too.

    As of a patient's results, joined by the patient alone: each row knows the last one. Empty if
    there is none.
    """
    label = subject.task.columns.label
    frame = subject.train_rows
    features = [name for name in subject.task.columns.features if name != label]
    if not is_plain(frame[label]) or frame[label].dtype.is_float():
        return ""
    for group, time in _list_groups(frame, label):
        changing = pl.col(label).n_unique().over(group) > 1
        rows = frame.filter(pl.col(group).is_not_null(), pl.col(time).is_not_null(), changing)
        if rows[group].n_unique() < FEWEST_GROUPS:
            continue
        ordered = rows.sort(time, maintain_order=True)
        for name in features:
            if name != group and 2 <= frame[name].n_unique() <= MOST_VALUES:
                column = pl.col(name)
                found = ordered.group_by(pl.col(group).alias("group")).agg(
                    last=pl.col(label).last(), own=column.last(), values=column.n_unique()
                )
                if _tells_last(found):
                    return (
                        f"{name} is the same in all rows of a {group}, whose label changes, and "
                        f"tells the last one by {time}"
                    )
    return ""


def _list_groups(frame: pl.DataFrame, label: str) -> Iterator[tuple[str, str]]:
    """Yield columns whose values come several times, each with a column of times."""
    times = [column.name for column in frame if column.dtype.is_temporal()]
    for column in frame.drop(label):
        if is_name(column) and FEWEST_GROUPS <= column.n_unique() < 0.8 * len(column):
            for time in times:
                yield column.name, time


def _tells_last(groups: pl.DataFrame) -> bool:
    """Whether the value that a group has in all rows tells its last label, in nearly each."""
    constant = groups.filter(pl.col("values") == 1)
    counts = constant.group_by("own", "last").len().sort("len")
    commonest = counts.group_by("own").agg(pl.col("last", "len").last())
    is_told = commonest["len"].sum() >= NEARLY_ALL * groups.height
    return bool(is_told) and commonest["last"].n_unique() > 1
