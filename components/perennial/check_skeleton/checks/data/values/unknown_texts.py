"""Find frequent texts and items that `encode` takes for unknown, though it knows rarer ones."""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import find_tensors_of, is_plain, repeat_row
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject, compute_example_keys
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import inputs_of

MADE_UP = ("\N{SNOWMAN} never seen", "\N{SNOWMAN} nor this")
FEWEST_VALUES, MOST_VALUES = 10, 2_000
FEWEST_ITEMS = 4
FEWEST_UNKNOWN = 3
# A vocabulary of the most frequent values knows every value of more rows than those it knows.
UNKNOWN_SHARE = 0.1


def judge_unknown_texts(judge: Judge, subject: Subject) -> CheckResult | None:
    """Fail a column whose texts, or items, are unknown to `encode`, and not for being rare.

    They have the same inputs as two texts that nobody wrote, and more rows than half of the known
    values; or they are codes of a sequence, and none is known. None if there is no such column.
    """
    for name in subject.task.columns.features:
        column = subject.train_rows[name]
        is_list = column.dtype == pl.List(pl.String)
        if not is_list and (column.dtype != pl.String or not is_plain(column)):
            continue
        texts = column.explode() if is_list else column
        counts = texts.drop_nulls().alias("value").value_counts(sort=True).head(MOST_VALUES)
        if counts.height < (FEWEST_ITEMS if is_list else FEWEST_VALUES):
            continue
        keys = _encode_values(subject, name, [*counts["value"], *MADE_UP])
        if not keys or keys[-1] != keys[-2]:
            continue
        is_unknown = np.array([key == keys[-1] for key in keys[:-2]])
        rows = counts["count"].to_numpy()
        if is_unknown.all():
            if is_list and (codes := _find_codes(subject, name)):
                return judge.failed(
                    f"all {len(rows)} items of {name} are encoded like one that was never seen, in "
                    f"{codes}",
                    hint="they are looked up in another column's vocabulary, or in another "
                    "spelling: learn theirs in fit(train)",
                )
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


def _encode_values(subject: Subject, name: str, texts: list[str]) -> list[bytes]:
    """Return a key of the inputs with each text in the column; empty if `encode` rejects them."""
    kind = subject.train_rows.schema[name]
    # Two of an item: an average of one may leave it out.
    values = [[text, text] for text in texts] if kind.is_nested() else texts
    try:
        encoded = subject.task.encode(repeat_row(subject, pl.Series(name, values, dtype=kind)))
    except Exception:  # a task may reject what it does not know
        return []
    return compute_example_keys(inputs_of(encoded))


def _find_codes(subject: Subject, name: str) -> str:
    """Return a tensor of codes, [B, T], that changes with a column; empty if there is none."""
    tensors = inputs_of(subject.train)
    return next(
        (
            each
            for each in find_tensors_of(subject, name)
            if each in tensors and tensors[each].ndim == 2 and not tensors[each].is_floating_point()
        ),
        "",
    )
