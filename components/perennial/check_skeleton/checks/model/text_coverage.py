"""Check `text_coverage`: texts are read completely, frequent words as distinct inputs."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from perennial.check_skeleton.checks.data.signals import is_plain, measure_signal, needs_column
from perennial.check_skeleton.checks.model.sequences import map_characters
from perennial.check_skeleton.checks.model.token_positions import (
    find_tokens,
)
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    Subject,
    compute_example_keys,
    find_padding,
)
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, inputs_of

READ_ROWS = 128
FEWEST_TEXTS = 8
PARTS = 8
# Texts that fill more of their sequence may be cut correctly.
ROOM = 0.75
READ_SHARE = 0.5
CLEAR_ERRORS = 5.0
# Of the occurrences of frequent words. Lists of stop words in other languages and few buckets of
# a hash lose up to a half, vocabularies that are looked up wrongly nearly all.
COMMON_WORD = 0.02
DOUBTED_LOSS, CLEAR_LOSS = 1 / 3, 0.75
MOST_WORDS = 200
FEWEST_WORDS = 8
# Rarer words are left out of many vocabularies.
FREQUENT_TEXTS = 5
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
FEWEST_ROWS = 64
LONG_WORDS = PARTS
SCORE_BINS = 8
# Added to every count of a word (pseudo-count).
PRIOR = 0.5


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


@check(
    "text_coverage",
    expects=(
        "different inputs for different frequent words; most changes of one character "
        f"seen in each of {PARTS} parts of a text"
    ),
    source="guides: look at what the model really receives; contexts that are cut too early "
    "and unknown words lose text silently",
    tolerance=f"{DOUBTED_LOSS:.0%} of the words' occurrences, {READ_SHARE:.0%} of texts with "
    "room left",
)
def check_text_coverage(subject: Subject, judge: Judge) -> CheckResult:
    """Check that texts reach the tensors completely, frequent words as distinct inputs."""
    words = measure_words(subject)
    if lost := _judge_words(judge, words):
        return lost
    if words and (padded := find_words_as_padding(subject)):
        name, lost_words, share = padded
        return (judge.failed if share >= COMMON_WORD else judge.warned)(
            f"{', '.join(lost_words[:4])} in {name}, in {share:.0%} of the texts, has the code of "
            "padding",
            hint="the vocabulary is numbered from 0, which is the code of padding: start after the "
            "codes of padding and unknown words",
        )
    found = _judge_parts(judge, subject)
    if found.outcome != "skipped" or found.is_unmeasured or not words:
        return found
    return judge.passed(f"{words[0].words} frequent words of {words[0].column} become "
                        f"{words[0].inputs} different inputs")  # fmt: skip


def _judge_words(judge: Judge, found: Sequence[Words]) -> CheckResult | None:
    """Judge the words that are lost; None where each word has its own input."""
    if not found or found[0].lost <= DOUBTED_LOSS:
        return None
    worst = found[0]
    shown = (
        f"{worst.words} frequent words of {worst.column} become {worst.inputs} different inputs"
        + (f", {worst.unseen} the input of an unknown word" if worst.unseen else "")
        + (f", {' and '.join(worst.alike)} the same input" if worst.alike else "")
        + f": {worst.lost:.0%} of their occurrences are lost"
    )
    hint = (
        "words are looked up in another spelling than in the vocabulary (case, cut, punctuation), "
        "by a part of them, or by shared codes: codes modulo a number, a limit on codes, or codes "
        "of padding and unknown words"
    )
    # A vocabulary chosen by hand may be small, but each of its words has its own input.
    is_clear = worst.lost > CLEAR_LOSS and worst.is_sequence and not worst.is_chosen
    return (judge.failed if is_clear else judge.warned)(shown, hint=hint, lost=worst.lost)


def _judge_parts(judge: Judge, subject: Subject) -> CheckResult:
    """Judge whether each part of a text is read: of the label, or of a feature."""
    label, labels = subject.task.columns.label, subject.train[LABEL]
    is_text = subject.train_rows[label].dtype == pl.String
    if not is_text or labels.ndim != 2 or labels.is_floating_point():
        return _judge_feature(judge, subject)
    tokens = find_tokens(subject.train)
    padding = None if tokens is None else find_padding(subject.train[tokens])
    if padding is None:
        return judge.skipped("texts fill their sequences, so cut texts are expected")
    has_room = padding.content <= ROOM * labels.shape[1]
    rows = subject.train_rows.filter(pl.Series(has_room.numpy())).head(READ_ROWS)
    rows = rows.filter(pl.col(label).str.len_chars() >= PARTS)
    if rows.height < FEWEST_TEXTS:
        return judge.skipped(f"{rows.height} texts leave room in their sequences")
    seen = _measure_seen_parts(subject, rows)
    shown = f"seen in the parts of {rows.height} texts: {', '.join(f'{s:.0%}' for s in seen)}"
    if min(seen) >= READ_SHARE:
        return judge.passed(shown, seen=seen)
    is_cut = seen[0] >= READ_SHARE > seen[-1]
    return judge.warned(
        shown,
        hint="texts are cut, though their sequences have room for more: look for a limit in encode "
        "that is smaller than the context"
        if is_cut
        else "many characters share one code: most words may be unknown to a tokenizer that is "
        "made for another language, case or encoding",
        seen=seen,
    )


def _judge_feature(judge: Judge, subject: Subject) -> CheckResult:
    """Judge a text feature: whether it is cut, and the cut text predicts the label."""
    name = find_long_texts(subject)
    if not name:
        return judge.skipped("neither the label nor a feature is free text")
    try:
        seen = measure_parts_seen(subject, name)
    except Exception as error:  # a task may reject new texts
        return judge.skipped(f"encode rejects changed texts: {type(error).__name__}: {error}")
    unseen = [part for part, share in enumerate(seen) if share < READ_SHARE]
    shown = f"seen in the parts of long texts in {name}: {', '.join(f'{s:.0%}' for s in seen)}"
    if not seen or not unseen:
        return judge.passed(shown) if seen else judge.skipped("too few long texts")
    told = measure_signal_of_parts(subject, name, unseen)
    if told < CLEAR_ERRORS:
        return judge.passed(
            f"{shown}; the rest does not predict the label ({told:.1f} standard errors)"
        )
    return judge.warned(
        f"{shown}; words in the unseen parts predict the label by {told:.0f} standard errors",
        hint=_explain_cut(unseen, seen),
        seen=seen,
        told=round(told, 2),
    )


def _explain_cut(unseen: Sequence[int], seen: Sequence[float]) -> str:
    """Return why parts of texts do not reach the inputs."""
    if len(unseen) == len(seen):
        return (
            "words do not reach the inputs: most words may be unknown to encode, because of case "
            "or spelling"
        )
    if 0 in unseen:
        return "the beginning of texts is cut off, and it predicts the label: keep it"
    return (
        "texts are cut, and the cut part predicts the label: raise the length, keep the end, or "
        "read more than one window"
    )


def _measure_seen_parts(subject: Subject, rows: pl.DataFrame) -> list[float]:
    """Return, by part, the share of texts whose tensors change with a character in it."""
    label, before, shares = subject.task.columns.label, subject.task.encode(rows), []
    exchange = map_characters(rows[label])
    for part in range(PARTS):
        texts = [
            _change_character(text, (2 * part + 1) / (2 * PARTS), exchange) for text in rows[label]
        ]
        changed = rows.with_columns(pl.Series(label, texts, dtype=pl.String))
        with made_up("texts with one other character"):
            after = subject.task.encode(changed)
        differs = [(after[name] != before[name]).flatten(1).any(dim=1)
                   for name in inputs_of(before)]  # fmt: skip
        shares.append(round(float(torch.stack(differs).any(dim=0).double().mean()), 4))
    return shares


def _change_character(text: str, where: float, exchange: Mapping[int, str]) -> str:
    place = int(where * len(text))
    return text[:place] + text[place].translate(exchange) + text[place + 1 :]


def measure_words(subject: Subject) -> list[Words]:
    """Return the frequent words of each text feature after `encode`, worst first."""
    found = []
    for name, words in subject.once(_frequent_words).items():
        try:
            judged = _measure_column(subject, name, words)
        except Exception:  # a task may reject new texts
            continue
        found += [judged] if judged else []
    return sorted(found, key=lambda each: -each.lost)


def _frequent_words(subject: Subject) -> dict[str, dict[str, int]]:
    """Return the frequent words of each text feature that has enough of them, with their counts."""
    texts = [subject.train_rows[name] for name in subject.task.columns.features]
    found = {each.name: _count_frequent(each) for each in texts if each.dtype == pl.String}
    return {name: words for name, words in found.items() if words}


def _count_frequent(texts: pl.Series) -> dict[str, int]:
    """Count the texts of each content word, one word per stem."""
    counts: Counter[str] = Counter()
    for text in texts.drop_nulls():
        counts.update(set(text.split()))
    chosen: dict[str, int] = {}
    stems = set()
    for word, count in counts.most_common():
        stem = word.lower()[:STEM]
        is_content = WORD.fullmatch(word) and word.lower() not in FUNCTION_WORDS
        if count < FREQUENT_TEXTS or len(chosen) == MOST_WORDS:
            break
        if is_content and stem not in stems:
            stems.add(stem)
            chosen[word] = count
    is_text = float(texts.str.count_matches(r"\s+").mean() or 0.0) >= 1  # type: ignore[arg-type]
    return chosen if is_text and len(chosen) >= FEWEST_WORDS else {}


def _measure_column(subject: Subject, name: str, words: dict[str, int]) -> Words | None:
    """Encode a column's words, each alone, repeated, and in a text; None if not conclusive."""
    column = subject.train_rows[name].drop_nulls()
    real = column.unique(maintain_order=True).head(SAMPLE_TEXTS).to_list()
    size = sum(each[0].numel() for each in inputs_of(subject.train).values())
    words = dict(list(words.items())[: BUDGET // (4 * max(size, 1))])
    if len(words) < FEWEST_WORDS:
        return None
    moved, keys = _encode_texts(subject, name, real)
    is_kept = len(set(keys)) >= REPEATED_SHARE * len(real)
    if column.n_unique() <= REPEATED_SHARE * len(column) and is_kept:
        return None
    if not moved and not needs_column(subject, subject.train_rows.head(1), name):
        return None
    context = sorted(real, key=lambda text: len(text.split()))[len(real) // 2].split()
    every = [*words, *_make_unseen(words)]
    forms = [[word, " ".join([word] * REPEATS), " ".join([word, *context[1:]]),
              " ".join([*context[:-1], word])] for word in every]  # fmt: skip
    _, keys = _encode_texts(subject, name, [text for form in forms for text in form])
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


def find_words_as_padding(subject: Subject) -> tuple[str, list[str], float] | None:
    """Return frequent words with the code of padding, with their column and share of the texts.

    Such a word disappears after a text, where only padding follows, but not before it. Words that
    `encode` drops by design disappear at both ends.
    """
    for name in subject.once(_frequent_words):
        column = subject.train_rows[name]
        try:
            found = _find_vanished(subject, name)
        except Exception:  # a task may reject new texts
            continue
        if found:
            has = column.fill_null("").str.split(" ").list.contains(pl.lit(found[0]))
            return name, found, float(has.mean() or 0.0)  # type: ignore[arg-type]
    return None


def _find_vanished(subject: Subject, name: str) -> list[str]:
    texts = subject.train_rows[name].drop_nulls()
    counts = Counter(word for text in texts for word in set(text.split()) if word.isalnum())
    size = sum(each[0].numel() for each in inputs_of(subject.train).values())
    most = min(MOST_WORDS, BUDGET // (2 * max(size, 1)))
    words = [word for word, count in counts.most_common(most) if count >= FREQUENT_TEXTS]
    # A short text, so that there is room for one more word.
    short = sorted(texts.unique(maintain_order=True), key=lambda text: len(text.split()))
    context = short[len(short) // 10]
    _, keys = _encode_texts(subject, name, [context, *(f"{context} {word}" for word in words),
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


def _encode_texts(subject: Subject, name: str, texts: Sequence[str]) -> tuple[int, list[bytes]]:
    """Return how many numbers of the inputs differ between these texts, and the inputs."""
    place = int(subject.train_rows[name].is_not_null().arg_max() or 0)
    rows = subject.train_rows[[place] * len(texts)]
    changed = rows.with_columns(pl.Series(name, texts, dtype=pl.String))
    inputs = inputs_of(subject.task.encode(changed))
    flat = [tensor.reshape(len(texts), -1) for tensor in inputs.values()]
    moved = sum(int((each != each[:1]).any(dim=0).sum()) for each in flat)
    return moved, compute_example_keys(inputs)


def _make_unseen(words: dict[str, int]) -> list[str]:
    """Return two unknown words of the same letters."""
    generator = np.random.default_rng(0)
    letters = sorted({letter for word in words for letter in word.lower()})
    return ["".join(generator.choice(letters, 12)) for _ in range(2)]


def find_long_texts(subject: Subject) -> str:
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


def measure_parts_seen(subject: Subject, name: str) -> list[float]:
    """Return, by part, the share of long texts whose inputs change with the words in it."""
    rows = _choose_long(subject.train_rows, name).head(READ_ROWS)
    if rows.height < FEWEST_ROWS // 2:
        return []
    before, seen = inputs_of(subject.task.encode(rows)), []
    texts_words = [text.split() for text in rows[name]]
    for part in range(PARTS):
        changed = []
        for words, others in zip(texts_words, [*texts_words[1:], texts_words[0]], strict=True):
            start, end = _find_bounds(words, part)
            stand_in = [others[place % len(others)] for place in range(start, end)]
            changed.append(" ".join([*words[:start], *stand_in, *words[end:]]))
        texts = pl.Series(name, changed, dtype=pl.String)
        after = inputs_of(subject.task.encode(rows.with_columns(texts)))
        differs = [
            (after[each] != before[each]).reshape(rows.height, -1).any(dim=1) for each in before
        ]
        seen.append(round(float(torch.stack(differs).any(dim=0).double().mean()), 4))
    return seen


def measure_signal_of_parts(subject: Subject, name: str, parts: Sequence[int]) -> float:
    """Return the standard errors by which words of these parts predict labels of other rows."""
    texts = subject.train_rows[name].fill_null("").to_list()
    labels = subject.train[LABEL].numpy()
    codes, counts = np.unique(labels, return_counts=True)
    is_one = labels == codes[counts.argmax()]
    words = [
        [word for part in parts for word in text.split()[slice(*_find_bounds(text.split(), part))]]
        for text in texts
    ]
    half = np.arange(len(words)) % 2 == 0
    odds = _measure_odds(words, is_one, half)
    scores = pl.Series([sum(odds.get(word, 0.0) for word in each) for each in words])
    bins = (scores.filter(pl.Series(~half)).rank() * SCORE_BINS / (~half).sum()).floor()
    target = is_one[~half].astype(np.float64)[:, None]
    return measure_signal(bins.cast(pl.Int64).to_numpy(), target).errors


def _measure_odds(
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


def _choose_long(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the longer half of the texts, with enough words for all parts."""
    length = rows[name].fill_null("").str.split(" ").list.len()
    least = max(LONG_WORDS, float(length.median() or 0.0))  # type: ignore[arg-type]
    return rows.filter(length >= least)


def _find_bounds(words: Sequence[str], part: int) -> tuple[int, int]:
    return part * len(words) // PARTS, (part + 1) * len(words) // PARTS
