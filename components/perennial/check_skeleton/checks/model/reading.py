"""Reading: which parts of a text feature reach the inputs, and whether the others matter."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl
import torch

from perennial.check_skeleton.checks.data.signals import is_plain, signal_of
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL, inputs_of

PARTS = 8
READ_ROWS = 128
FEWEST_ROWS = 64
FEWEST_WORDS = PARTS
SEEN_SHARE = 0.5
SCORE_BINS = 8
# Added to every count of a word (pseudo-count).
PRIOR = 0.5


def long_texts(subject: Subject) -> str:
    """Return the first feature of free text; empty where none is, or the label is not a class."""
    if subject.task.kind not in ("binary", "multiclass"):
        return ""
    rows = subject.train_rows
    texts = [
        name
        for name in subject.task.columns.features
        if rows[name].dtype == pl.String and not is_plain(rows[name])
    ]
    return texts[0] if texts else ""


def parts_seen(subject: Subject, name: str) -> list[float]:
    """Return, by part, the share of long texts whose inputs change with the words in it."""
    rows = _long(subject.train_rows, name).head(READ_ROWS)
    if rows.height < FEWEST_ROWS // 2:
        return []
    before, seen = inputs_of(subject.task.encode(rows)), []
    texts_words = [text.split() for text in rows[name]]
    for part in range(PARTS):
        changed = []
        for words, others in zip(texts_words, [*texts_words[1:], texts_words[0]], strict=True):
            start, end = _bounds(words, part)
            stand_in = [others[place % len(others)] for place in range(start, end)]
            changed.append(" ".join([*words[:start], *stand_in, *words[end:]]))
        texts = pl.Series(name, changed, dtype=pl.String)
        after = inputs_of(subject.task.encode(rows.with_columns(texts)))
        differs = [
            (after[each] != before[each]).reshape(rows.height, -1).any(dim=1) for each in before
        ]
        seen.append(round(float(torch.stack(differs).any(dim=0).double().mean()), 4))
    return seen


def told_by(subject: Subject, name: str, parts: Sequence[int]) -> float:
    """Return the standard errors by which words of these parts predict labels of other rows."""
    texts = subject.train_rows[name].fill_null("").to_list()
    labels = subject.train[LABEL].numpy()
    codes, counts = np.unique(labels, return_counts=True)
    is_one = labels == codes[counts.argmax()]
    words = [
        [word for part in parts for word in text.split()[slice(*_bounds(text.split(), part))]]
        for text in texts
    ]
    half = np.arange(len(words)) % 2 == 0
    odds = _odds(words, is_one, half)
    scores = pl.Series([sum(odds.get(word, 0.0) for word in each) for each in words])
    bins = (scores.filter(pl.Series(~half)).rank() * SCORE_BINS / (~half).sum()).floor()
    target = is_one[~half].astype(np.float64)[:, None]
    return signal_of(bins.cast(pl.Int64).to_numpy(), target).errors


def _odds(
    words: list[list[str]], is_one: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
    half: "np.ndarray[tuple[int], np.dtype[np.bool_]]",
) -> dict[str, float]:  # fmt: skip
    """Return the log ratio of each word's frequency in one class, from half of the texts."""
    inside, outside = (
        Counter(word for row in np.flatnonzero(half & side) for word in set(words[row]))
        for side in (is_one, ~is_one)
    )
    scale = (int((half & ~is_one).sum()) + 1) / (int((half & is_one).sum()) + 1)
    return {
        word: math.log((inside[word] + PRIOR) / (outside[word] + PRIOR) * scale)
        for word in inside.keys() | outside.keys()
    }


def _long(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the longer half of the texts, with enough words for all parts."""
    length = rows[name].fill_null("").str.split(" ").list.len()
    least = max(FEWEST_WORDS, float(length.median() or 0.0))  # type: ignore[arg-type]
    return rows.filter(length >= least)


def _bounds(words: Sequence[str], part: int) -> tuple[int, int]:
    return part * len(words) // PARTS, (part + 1) * len(words) // PARTS
