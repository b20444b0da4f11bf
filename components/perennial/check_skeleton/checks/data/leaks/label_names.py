"""Find texts and lists of words of which each holds the name, or a mark, of its own class."""

import re

import polars as pl

from perennial.check_skeleton.checks.data.signals import is_free_text
from perennial.check_skeleton.subject import Subject

ROWS = 1000
FEWEST_ROWS, MOST_NAMES = 50, 200
# Some texts do name their subject. Lists of candidates name others as well.
NEARLY_ALL = 0.9
# Marks and classes are few, and no class has nearly all rows.
MOST_MARKED, MOST_ALIKE, MARKED = 20, 0.8, 0.98
WORD = re.compile(r"\w+")


def describe_named_label(subject: Subject) -> str:
    """Describe a column that names nearly each row's class and no other; empty if none does."""
    columns, rows = subject.task.columns, subject.train_rows.head(ROWS)
    labels = rows[columns.label]
    if labels.dtype != pl.String or labels.null_count() or rows.height < FEWEST_ROWS:
        return ""
    names = {name.lower() for name in labels.unique()}
    if not 2 <= len(names) <= MOST_NAMES or not all(map(WORD.fullmatch, names)):
        return ""
    for name in columns.features:
        column = rows[name]
        if column.dtype == pl.List(pl.String):
            column = column.list.drop_nulls().list.join(" ")
        elif not is_free_text(column):
            continue
        found = [names & set(WORD.findall((text or "").lower())) for text in column]
        own = [each == {label.lower()} for each, label in zip(found, labels, strict=True)]
        if sum(own) >= NEARLY_ALL * len(own):
            share = f"{sum(own)} of {len(own)} rows"
            return f"{name} holds the name of its own class, and of no other, in {share}"
    return ""


def describe_label_mark(subject: Subject) -> str:
    """Describe a text column whose first or last word is a mark of the class; empty if none is.

    Marks are words without letters, as the numbers of a list or stars of a rating.
    """
    columns, rows = subject.task.columns, subject.train_rows.head(ROWS)
    labels = rows[columns.label].alias("label")
    if labels.dtype.is_nested() or labels.null_count() or rows.height < FEWEST_ROWS:
        return ""
    counted = labels.value_counts(name="rows")
    most = int(counted["rows"].max())  # type: ignore[arg-type]
    if not 2 <= counted.height <= MOST_MARKED or most > MOST_ALIKE * rows.height:
        return ""
    for name in columns.features:
        if not is_free_text(rows[name]) or name == columns.label:
            continue
        words = rows[name].fill_null("").str.split(" ")
        for place, which in ((0, "first"), (-1, "last")):
            marks = words.list.get(place)
            if marks.str.contains(r"[^\W\d_]").mean() > 1 - NEARLY_ALL:  # type: ignore[operator]
                continue
            counts = pl.DataFrame({"mark": marks, "label": labels}).group_by("mark", "label").len()
            told = int(counts.group_by("mark").agg(pl.col("len").max())["len"].sum())
            if counts["mark"].n_unique() <= MOST_MARKED and told >= MARKED * rows.height:
                return (
                    f"the {which} word of {name}, as {marks[0]!r}, tells the class of {told} of "
                    f"{rows.height} rows"
                )
    return ""
