"""Words: whether frequent words of a text become distinct inputs."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from perennial.check_skeleton.checks.data.reading import are_equal
from perennial.check_skeleton.subject import Subject, example_keys
from perennial.engine.task import inputs_of

MOST_WORDS = 200
FEWEST_WORDS = 8
# Rarer words are left out of many vocabularies.
FEWEST_TEXTS = 5
# Numbers are content, though lists of stop words have them.
FUNCTION_WORDS = ENGLISH_STOP_WORDS - {
    "one", "two", "three", "four", "five", "six", "eight", "nine", "ten", "eleven", "twelve",
    "fifteen", "twenty", "forty", "fifty", "sixty", "hundred", "first", "third",
}  # fmt: skip
# Words that begin alike may be forms of one, which stemming makes equal.
STEM = 5
WORD = re.compile(r"[^\W\d_]{3,}")
# Numbers of all inputs that are made at once.
BUDGET = 20_000_000
SAMPLE_TEXTS = 200
REPEATS = 8
# Fewer are features made by hand: a length, a title, a count.
FEWEST_NUMBERS = 8
PADDED_SHARE = 0.05
# A column of mostly repeated values that stay distinct may contain names.
REPEATED_SHARE = 0.5


@dataclass(frozen=True)
class Words:
    """Frequent words of a column after `encode`.

    Attributes:
        column: The column.
        words: Number of words tried.
        inputs: Number of distinct inputs, without the input of unknown words.
        lost: Share of occurrences that became the input of a more frequent or unknown word.
        unseen: Number of words that became the input of an unknown word.
        alike: Two words with the same input; empty where there are none.
        is_chosen: Whether all other words have their own inputs, as words of a list have.
        is_sequence: Whether texts change many numbers of the inputs, or none though they are read.
    """

    column: str
    words: int
    inputs: int
    lost: float
    unseen: int
    alike: tuple[str, ...]
    is_chosen: bool
    is_sequence: bool


def words_of(subject: Subject) -> list[Words]:
    """Return the frequent words of each text feature after `encode`, worst first."""
    rows, found = subject.train_rows, []
    for name in subject.task.columns.features:
        if rows[name].dtype == pl.String and (words := _frequent(rows[name])):
            try:
                judged = _judged(subject, name, words)
            except Exception:  # a task may reject new texts
                continue
            found += [judged] if judged else []
    return sorted(found, key=lambda each: -each.lost)


def _frequent(texts: pl.Series) -> dict[str, int]:
    """Count the texts of each content word, one word per stem."""
    counts: Counter[str] = Counter()
    for text in texts.drop_nulls():
        counts.update(set(text.split()))
    chosen: dict[str, int] = {}
    stems = set()
    for word, count in counts.most_common():
        stem = word.lower()[:STEM]
        is_content = WORD.fullmatch(word) and word.lower() not in FUNCTION_WORDS
        if count < FEWEST_TEXTS or len(chosen) == MOST_WORDS:
            break
        if is_content and stem not in stems:
            stems.add(stem)
            chosen[word] = count
    is_text = float(texts.str.count_matches(r"\s+").mean() or 0.0) >= 1  # type: ignore[arg-type]
    return chosen if is_text and len(chosen) >= FEWEST_WORDS else {}


def _judged(subject: Subject, name: str, words: dict[str, int]) -> Words | None:
    """Encode a column's words, each alone, repeated, and in a text; None if not conclusive."""
    column = subject.train_rows[name].drop_nulls()
    real = column.unique(maintain_order=True).head(SAMPLE_TEXTS).to_list()
    size = sum(each[0].numel() for each in inputs_of(subject.train).values())
    words = dict(list(words.items())[: BUDGET // (4 * max(size, 1))])
    if len(words) < FEWEST_WORDS:
        return None
    moved, keys = _encoded(subject, name, real)
    is_kept = len(set(keys)) >= REPEATED_SHARE * len(real)
    if column.n_unique() <= REPEATED_SHARE * len(column) and is_kept:
        return None
    if not moved and not _is_read(subject, name):
        return None
    context = sorted(real, key=lambda text: len(text.split()))[len(real) // 2].split()
    every = [*words, *_unseen(words)]
    forms = [[word, " ".join([word] * REPEATS), " ".join([word, *context[1:]]),
              " ".join([*context[:-1], word])] for word in every]  # fmt: skip
    _, keys = _encoded(subject, name, [text for form in forms for text in form])
    inputs = [tuple(keys[4 * place : 4 * place + 4]) for place in range(len(every))]
    groups: dict[tuple[bytes, ...], list[str]] = {}
    for word, key in zip(words, inputs, strict=False):
        groups.setdefault(key, []).append(word)
    unknown = [word for key in set(inputs[len(words) :]) for word in groups.pop(key, [])]
    kept = sum(words[group[0]] for group in groups.values())
    alike = max(groups.values(), key=len, default=[])
    return Words(
        name,
        len(words),
        len(groups),
        1 - kept / sum(words.values()),
        len(unknown),
        tuple(alike[:2]) if len(alike) > 1 else (),
        is_chosen=len(alike) == 1 and len(groups) > 2,
        is_sequence=moved == 0 or moved >= FEWEST_NUMBERS,
    )


def words_as_padding(subject: Subject) -> tuple[str, list[str], float] | None:
    """Return frequent words with the code of padding, with their column and share of the texts.

    Such a word disappears after a text, where only padding follows, but not before it. Words that
    `encode` drops by design disappear at both ends.
    """
    for name in subject.task.columns.features:
        column = subject.train_rows[name]
        if column.dtype != pl.String or not _frequent(column):
            continue
        try:
            found = _vanished(subject, name)
        except Exception:  # a task may reject new texts
            continue
        if found:
            has = column.fill_null("").str.split(" ").list.contains(pl.lit(found[0]))
            return name, found, float(has.mean() or 0.0)  # type: ignore[arg-type]
    return None


def _vanished(subject: Subject, name: str) -> list[str]:
    texts = subject.train_rows[name].drop_nulls()
    counts = Counter(word for text in texts for word in set(text.split()) if word.isalnum())
    size = sum(each[0].numel() for each in inputs_of(subject.train).values())
    most = min(MOST_WORDS, BUDGET // (2 * max(size, 1)))
    words = [word for word, count in counts.most_common(most) if count >= FEWEST_TEXTS]
    # A short text, so that there is room for one more word.
    short = sorted(texts.unique(maintain_order=True), key=lambda text: len(text.split()))
    context = short[len(short) // 10]
    _, keys = _encoded(subject, name, [context, *(f"{context} {word}" for word in words),
                                       *(f"{word} {context}" for word in words)])  # fmt: skip
    behind, before = keys[1 : 1 + len(words)], keys[1 + len(words) :]
    one_end = [
        [word for word, key, other in zip(words, ends, others, strict=True)
         if key == keys[0] != other]
        for ends, others in ((behind, before), (before, behind))
    ]  # fmt: skip
    found = max(one_end, key=len)
    # Where many disappear, texts are cut there.
    return found if len(found) <= max(PADDED_SHARE * len(words), 1) else []


def _encoded(subject: Subject, name: str, texts: Sequence[str]) -> tuple[int, list[bytes]]:
    """Return how many numbers of the inputs differ between these texts, and the inputs."""
    place = int(subject.train_rows[name].is_not_null().arg_max() or 0)
    rows = subject.train_rows[[place] * len(texts)]
    changed = rows.with_columns(pl.Series(name, texts, dtype=pl.String))
    inputs = inputs_of(subject.task.encode(changed))
    flat = [tensor.reshape(len(texts), -1) for tensor in inputs.values()]
    moved = sum(int((each != each[:1]).any(dim=0).sum()) for each in flat)
    return moved, example_keys(inputs)


def _is_read(subject: Subject, name: str) -> bool:
    """Whether `encode` uses the column."""
    rows = subject.train_rows.head(1)
    before = inputs_of(subject.task.encode(rows))
    try:
        after = inputs_of(subject.task.encode(rows.drop(name)))
    except Exception:  # only a column that is used can be missing
        return True
    return not are_equal(before, after)


def _unseen(words: dict[str, int]) -> list[str]:
    """Return two unknown words of the same letters."""
    generator = np.random.default_rng(0)
    letters = sorted({letter for word in words for letter in word.lower()})
    return ["".join(generator.choice(letters, 12)) for _ in range(2)]
