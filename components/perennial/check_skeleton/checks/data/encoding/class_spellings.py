"""Find classes that are two spellings of one name, as of two sources, each with its own code."""

import unicodedata
from collections.abc import Sequence

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import group_values, is_plain
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Codes, Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL

# Of a name: a and A are classes of handwritten letters.
FEWEST_LETTERS = 3
# Vocabularies contain a few words with and without a capital.
MOST_CLASSES, LEAST_SHARE, MOST_DIFFERENT = 200, 0.05, 0.5
# Of the classes, for two sources; and of the rows whose source another column tells.
HALF, FEWEST_NAMES, EXPLAINED = 0.5, 2, 0.98
LEAST_ROWS, LEAST_OF_ROWS, BINS = 20, 0.05, 32


def judge_spellings(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge classes that differ in case, spaces, hyphens or accents alone; None if none do.

    It fails if most names come in two spellings and a time or another column tells which.
    """
    label, codes = subject.task.columns.label, subject.train[LABEL]
    rows = pl.concat([subject.train_rows, subject.validation_rows])
    texts = rows[label]
    if texts.dtype != pl.String or texts.null_count() or codes.ndim != 1:
        return None
    if not 2 <= texts.n_unique() <= MOST_DIFFERENT * len(texts):
        return None
    held = subject.validation[LABEL].tolist()
    code_of = dict(zip(texts, [*codes.tolist(), *held], strict=True))
    names = [each for each in _group(list(code_of)) if len({code_of[one] for one in each}) > 1]
    doubled = [spelling for each in names for spelling in each]
    share = len(doubled) / len(code_of)
    if not names or (len(code_of) > MOST_CLASSES and share < LEAST_SHARE):
        return None
    shown = (
        f"{len(doubled)} of {len(code_of)} classes differ from another one in case, spaces, "
        f"hyphens or accents alone, as {names[0][0]!r} and {names[0][1]!r}"
    )
    is_certain = share >= HALF and len(names) >= FEWEST_NAMES
    teller = _find_teller(rows, label, names) if is_certain else ""
    return (judge.failed if teller else judge.warned)(
        f"{shown}; {teller} tells which spelling a row has" if teller else shown,
        hint="two sources spell one class in two ways, so that it has two codes, and each is "
        "wrong where the other is right: spell labels alike where sources are joined. Correct for "
        "classes that differ by their case",
    )


def _group(classes: Sequence[str]) -> list[list[str]]:
    """Return the classes that are spellings of one name, of each name that has several."""
    groups: dict[str, list[str]] = {}
    for name in sorted(classes):
        parts = unicodedata.normalize("NFKD", name).casefold()
        bare = "".join(each for each in parts if not unicodedata.combining(each))
        plain = " ".join(bare.replace("_", " ").replace("-", " ").split())
        if sum(map(str.isalpha, plain)) >= FEWEST_LETTERS:
            groups.setdefault(plain, []).append(name)
    return [each for each in groups.values() if len(each) > 1]


def _find_teller(rows: pl.DataFrame, label: str, names: Sequence[Sequence[str]]) -> str:
    """Return a column that tells the spelling in nearly every row; empty if none does.

    Spellings in order: capitals come before small letters in every name, and spaces before both.
    """
    place = {spelling: number for each in names for number, spelling in enumerate(each)}
    asked = rows.filter(pl.col(label).is_in(list(place)))
    is_other = np.array([place[each] > 0 for each in asked[label]])
    fewer = min(is_other.sum(), (~is_other).sum())
    if fewer < max(LEAST_ROWS, LEAST_OF_ROWS * len(is_other)):
        return ""
    for column in asked.drop(label):
        if (
            is_plain(column)
            and _measure_explained(group_values(column, BINS), is_other) >= EXPLAINED
        ):
            return column.name
    return ""


def _measure_explained(groups: Codes, is_other: np.ndarray) -> float:
    """Return the share of rows that have the commoner spelling of their group."""
    _, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    if len(counts) > len(groups) / LEAST_ROWS:  # names that come once or twice tell everything
        return 0.0
    others = np.bincount(codes, weights=is_other)
    return float(np.maximum(others, counts - others).sum() / len(groups))
