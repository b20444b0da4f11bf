"""Find texts and lists of words of which each holds the name of its own class."""

import re

import polars as pl

from perennial.check_skeleton.checks.data.signals import is_free_text
from perennial.check_skeleton.subject import Subject

ROWS = 1000
FEWEST_ROWS, MOST_NAMES = 50, 200
# Some texts do name their subject. Lists of candidates name others as well.
NEARLY_ALL = 0.9
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
