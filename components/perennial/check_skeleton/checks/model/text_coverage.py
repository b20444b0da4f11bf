"""Check `text_coverage`: texts are read completely, frequent words as distinct inputs."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from perennial.check_skeleton.checks.data.signals import is_free_text, is_input_changed, repeat_row
from perennial.check_skeleton.checks.model.cut_lists import measure_cut_lists
from perennial.check_skeleton.checks.model.lost_words import Gain, measure_lost_words
from perennial.check_skeleton.checks.model.sequences import find_tokens, map_characters
from perennial.check_skeleton.checks.model.spellings import find_unknown_spelling
from perennial.check_skeleton.checks.model.unread_signs import measure_unread_signs
from perennial.check_skeleton.made_up_inputs import (
    RefusedInputsError,
    are_inputs_of_label,
    describe_exception,
    made_up,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, compute_example_keys, find_padding, once
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
DOUBTED_LOSS, CLEAR_LOSS = 1 / 3, 0.65
# Of what all words tell of the label. Sixteen healthy examples lose at most 7%; without "not", with
# a vocabulary of the most common words alone, or the first four words, 54% and more is lost.
CLEAR_LOST_SIGNAL = 0.5
# Of the same, for as many words of the other end: five healthy tasks that cut texts would lose by
# it, one whose customers come to the point at the end gains 18%.
CLEAR_GAIN = 0.1
PAIRS_AT_ONCE = 512
MOST_WORDS = 200
FEWEST_WORDS = 8
# Rarer words are left out of many vocabularies.
FREQUENT_TEXTS = 5
# Numbers are content, though lists of stop words have them.
FUNCTION_WORDS = ENGLISH_STOP_WORDS - {
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "fifteen",
    "twenty",
    "forty",
    "fifty",
    "sixty",
    "hundred",
    "first",
    "third",
}
# Words that begin alike may be forms of one, which stemming makes equal.
STEM = 5
WORD = re.compile(r"[^\W\d_]{3,}")
# Numbers of all inputs that are made at once.
BUDGET = 20_000_000
SAMPLE_TEXTS = 200
REPEATS = 8
# Fewer are features made by hand: a length, a title, a count.
FEWEST_NUMBERS = 8
FEWEST_TO_LOSE = 3
PADDED_SHARE = 0.05
# A column of mostly repeated values that stay distinct may contain names.
REPEATED_SHARE = 0.5


@dataclass(frozen=True)
class Vocabulary:
    """Frequent words of a column after `encode`."""

    column: str
    words: int  # number of words tried
    inputs: int  # number of distinct inputs, without the input of unknown words
    lost: float  # share of occurrences that became the input of a more frequent or unknown word
    unseen: int  # number of words that became the input of an unknown word
    alike: tuple[str, ...]  # two words with the same input; empty where there are none
    is_chosen: bool  # whether all other words have their own inputs, as in a list of chosen words
    is_sequence: bool  # whether texts change many inputs, or none though they are read


@check(
    "text_coverage",
    expects="different inputs for different frequent words; most changes of one character "
    f"seen in each of {PARTS} parts of a text",
    source="guides: look at what the model really receives; contexts that are cut too early "
    "and unknown words lose text silently",
    tolerance=f"{DOUBTED_LOSS:.0%} of the words' occurrences, {READ_SHARE:.0%} of texts with "
    "room left",
)
def check_text_coverage(subject: Subject, judge: Judge) -> CheckResult:
    """Check that texts reach the tensors completely, frequent words as distinct inputs."""
    words = measure_words(subject)
    found = list[CheckResult]()
    for judged in _judge_each(judge, subject, words):
        if judged.outcome == "failed":
            return judged
        found.append(judged)
    for each in found:
        if each.outcome == "warned":
            return each
    if found[-1].outcome != "skipped" or found[-1].is_unmeasured or not words:
        return found[-1]
    frequent = f"{words[0].words} frequent words of {words[0].column}"
    return judge.passed(f"{frequent} become {words[0].inputs} different inputs")


def _judge_each(
    judge: Judge, subject: Subject, words: Sequence[Vocabulary]
) -> Iterator[CheckResult]:
    """Yield what is found of words, padding and parts; each is measured when it is asked for."""
    if lost := _judge_words(judge, words):
        yield lost
    if unknown := _judge_spelling(judge, subject):
        yield unknown
    if unread := _judge_signs(judge, subject):
        yield unread
    if padded := _judge_padding(judge, subject, words):
        yield padded
    if cut := _judge_lists(judge, subject):
        yield cut
    yield _judge_parts(judge, subject)


def _judge_padding(
    judge: Judge, subject: Subject, words: Sequence[Vocabulary]
) -> CheckResult | None:
    """Judge words with the code of padding; None where there are none."""
    columns = [subject.train_rows[name] for name in subject.task.columns.features]
    lists = [each.name for each in columns if each.dtype == pl.List(pl.String)]
    padded = find_words_as_padding(
        subject, [*(_find_frequent_words(subject) if words else ()), *lists]
    )
    if padded is None:
        return None
    name, lost_words, share = padded
    return (judge.failed if share >= COMMON_WORD else judge.warned)(
        f"{', '.join(lost_words[:4])} in {name}, in {share:.0%} of the rows, has the code of "
        "padding",
        hint="the vocabulary is numbered from 0, which is the code of padding: start after the "
        "codes of padding and unknown words",
    )


def _judge_words(judge: Judge, found: Sequence[Vocabulary]) -> CheckResult | None:
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
        "of padding and unknown words; or they are left out, by a list of stop words or for want "
        "of room in the vocabulary"
    )
    # A vocabulary chosen by hand may be small, but each of its words has its own input.
    is_clear = worst.lost > CLEAR_LOSS and worst.is_sequence and not worst.is_chosen
    return (judge.failed if is_clear else judge.warned)(shown, hint=hint, lost=worst.lost)


def _judge_spelling(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge words that are known without their marks or capitals; None where all are read."""
    for name in _find_frequent_words(subject):
        texts = subject.train_rows[name].drop_nulls().to_list()
        try:
            found = find_unknown_spelling(texts, partial(_do_inputs_differ, subject, name))
        except Exception:  # a task may reject changed texts
            continue
        if found:
            return judge.failed(f"{found} ({name})", hint=found.spelling.remedy)
    return None


def _judge_lists(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge lists of items that are cut; None where none is cut at the end that tells more."""
    for name in subject.task.columns.features:
        dtype = subject.train_rows.schema[name]
        if not (
            isinstance(dtype, pl.List) and (dtype.inner == pl.String or dtype.inner.is_integer())
        ):
            continue
        try:
            with made_up("lists with one other item"):
                found = measure_cut_lists(subject, name)
        except RefusedInputsError:  # a task may reject changed lists
            continue
        if found and _is_clear(found.gain):
            return judge.failed(
                f"{found.kept} items of {name} are read; as many of the {found.cut}, which is cut "
                f"off, tell more of the label: {found.gain.share:.0%} of {found.gain.signal:.2g} "
                f"nats are lost ({found.gain.errors:.0f} standard errors)",
                hint=f"the wrong end is cut off: keep the {found.cut} of long lists",
                gain=round(found.gain.share, 4),
            )
    return None


def _judge_signs(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge signs that no input reads; None where they tell hardly more than the words."""
    for name in subject.task.columns.features:
        if not is_free_text(subject.train_rows[name]):
            continue
        try:
            with made_up("texts without some of their signs"):
                differ = partial(_do_inputs_differ, subject, name)
                found = measure_unread_signs(subject, name, differ)
        except RefusedInputsError:
            continue
        if found and _is_clear(found.gain):
            return judge.failed(
                f"the signs {found.signs} of {name} do not reach the inputs; they add "
                f"{found.gain.share:.0%} to what words and signs tell of the label "
                f"({found.gain.signal:.2g} nats; {found.gain.errors:.0f} standard errors)",
                hint="punctuation is removed, as for prose: keep the signs, each as a token",
                gain=round(found.gain.share, 4),
            )
    return None


def _is_clear(gain: Gain) -> bool:
    return gain.share >= CLEAR_GAIN and gain.errors >= CLEAR_ERRORS


def _judge_parts(judge: Judge, subject: Subject) -> CheckResult:
    """Judge whether each part of a text label is read, or the telling words of a text feature."""
    label, labels = subject.task.columns.label, subject.train[LABEL]
    is_text = subject.train_rows[label].dtype == pl.String
    if not is_text or labels.ndim != 2 or labels.is_floating_point():
        return _judge_lost_words(judge, subject)
    tokens = find_tokens(subject.train)
    padding = None if tokens is None else find_padding(subject.train[tokens])
    if padding is None:
        return judge.skipped("texts fill their sequences, so cut texts are expected")
    has_room = padding.content <= ROOM * labels.shape[1]
    rows = subject.train_rows.filter(pl.Series(has_room.numpy())).head(READ_ROWS)
    rows = rows.filter(pl.col(label).str.len_chars() >= PARTS)
    if rows.height < FEWEST_TEXTS:
        return judge.skipped(f"{rows.height} texts leave room in their sequences")
    exchange = map_characters(rows[label])

    def change(part: int) -> list[str]:
        changed = []
        for text in rows[label]:
            place = int((2 * part + 1) / (2 * PARTS) * len(text))
            changed.append(text[:place] + text[place].translate(exchange) + text[place + 1 :])
        return changed

    seen: list[float] = []
    try:
        with made_up("texts with one other character"):
            seen = _measure_seen_parts(subject, rows, label, change)
    except RefusedInputsError:
        if are_inputs_of_label(subject):
            raise
    # Tags of a closed set: with another character it is none of them.
    if not any(seen) and not are_inputs_of_label(subject):
        return _judge_lost_words(judge, subject)
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


def _judge_lost_words(judge: Judge, subject: Subject) -> CheckResult:
    """Judge what the lost words of text features would have predicted of the label."""
    texts = [
        name for name in subject.task.columns.features if is_free_text(subject.train_rows[name])
    ]
    if not texts:
        return judge.skipped("neither the label nor a feature is free text")
    size = sum(each[0].numel() for each in inputs_of(subject.train).values())
    try:
        with made_up("texts without some of their words"):
            found = {
                name: measure_lost_words(
                    subject, name, partial(_do_inputs_differ, subject, name), BUDGET // max(size, 1)
                )
                for name in texts
            }
    except Exception as error:  # a task may reject new texts
        return judge.skipped(f"encode rejects changed texts: {describe_exception(error)}")
    measured = {name: each for name, each in found.items() if each}
    if not measured:
        return judge.skipped("too few texts, or no classes to predict")
    name, worst = max(measured.items(), key=lambda each: each[1].lost)
    shown = f"{worst.share:.0%} of the words in {name} do not reach the inputs"
    is_clear = min(worst.signal_errors, worst.lost_errors) >= CLEAR_ERRORS
    if is_clear and worst.gain >= CLEAR_GAIN and worst.gain_errors >= CLEAR_ERRORS:
        return judge.failed(
            f"{shown}; as many words of the {worst.cut}, which is cut off, tell {worst.gain:.0%} "
            f"more of the label ({worst.signal:.2g} nats; {worst.gain_errors:.0f} standard errors)",
            hint=f"the wrong end is cut off: keep the {worst.cut} of long texts",
            gain=round(worst.gain, 4),
        )
    if not is_clear or worst.lost <= DOUBTED_LOSS:
        return judge.passed(shown)
    ways = []
    if worst.words:
        ways.append(
            f"keep {', '.join(map(repr, worst.words))}: look at the list of stop words, the room "
            "in the vocabulary, and how words are looked up in it"
        )
    if worst.cut == "end":
        ways.append(
            "texts are cut, and the cut part predicts the label: raise the length, keep the end, "
            "or read more than one window"
        )
    elif worst.cut:
        ways.append("the beginning of texts is cut off, and it predicts the label: keep it")
    is_failed = worst.lost >= CLEAR_LOST_SIGNAL and not worst.is_chosen
    return (judge.failed if is_failed else judge.warned)(
        f"{shown}, and with them {min(worst.lost, 1.0):.0%} of what words tell of the label "
        f"({worst.signal:.2g} nats; {worst.lost_errors:.0f} standard errors)",
        hint="; ".join(ways),
        lost_signal=round(worst.lost, 4),
    )


def _do_inputs_differ(subject: Subject, name: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Return for each pair of texts whether `encode` makes different inputs of them."""
    found: list[bool] = []
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        texts = [text for pair in pairs[start : start + PAIRS_AT_ONCE] for text in pair]
        _, keys = _encode_texts(subject, name, texts)
        found += [one != other for one, other in zip(keys[::2], keys[1::2], strict=True)]
    return found


def _measure_seen_parts(
    subject: Subject, rows: pl.DataFrame, name: str, change: Callable[[int], list[str]]
) -> list[float]:
    """Return, by part, the share of texts whose inputs change with it."""
    before, seen = inputs_of(subject.task.encode(rows)), []
    for part in range(PARTS):
        texts = pl.Series(name, change(part), dtype=pl.String)
        after = subject.task.encode(rows.with_columns(texts))
        pairs = ((before[each], after[each]) for each in before)
        differs = [(one != other).reshape(rows.height, -1).any(dim=1) for one, other in pairs]
        seen.append(round(float(torch.stack(differs).any(dim=0).double().mean()), 4))
    return seen


def measure_words(subject: Subject) -> list[Vocabulary]:
    """Measure what `encode` makes of each text feature's frequent words, worst first."""
    found = []
    for name, words in _find_frequent_words(subject).items():
        try:
            judged = _measure_column(subject, name, words)
        except Exception:  # a task may reject new texts
            continue
        found += [judged] if judged else []
    return sorted(found, key=lambda each: -each.lost)


@once
def _find_frequent_words(subject: Subject) -> dict[str, dict[str, int]]:
    """Count the frequent words of each text feature that has enough of them."""
    texts = [subject.train_rows[name] for name in subject.task.columns.features]
    found = {each.name: _count_frequent(each) for each in texts if each.dtype == pl.String}
    return {name: words for name, words in found.items() if words}


def _count_frequent(texts: pl.Series) -> dict[str, int]:
    """Count the texts of each content word, one word per stem."""
    counts = Counter(word for text in texts.drop_nulls() for word in set(text.split()))
    stems: dict[str, tuple[str, int]] = {}
    for word, count in counts.most_common():
        if count < FREQUENT_TEXTS or len(stems) == MOST_WORDS:
            break
        if WORD.fullmatch(word) and word.lower() not in FUNCTION_WORDS:
            stems.setdefault(word.lower()[:STEM], (word, count))
    is_text = float(texts.str.count_matches(r"\s+").mean() or 0.0) >= 1  # type: ignore[arg-type]
    return dict(stems.values()) if is_text and len(stems) >= FEWEST_WORDS else {}


def _measure_column(subject: Subject, name: str, words: dict[str, int]) -> Vocabulary | None:
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
    one = subject.train_rows.head(1)
    if not moved and not is_input_changed(subject, one, one.drop(name)):
        return None
    context = sorted(real, key=lambda text: len(text.split()))[len(real) // 2].split()
    # Two unknown words of the same letters.
    generator = np.random.default_rng(0)
    letters = sorted({letter for word in words for letter in word.lower()})
    every = [*words, *("".join(generator.choice(letters, 12)) for _ in range(2))]
    texts = [
        " ".join(each)
        for word in every
        for each in ([word], [word] * REPEATS, [word, *context[1:]], [*context[:-1], word])
    ]
    _, keys = _encode_texts(subject, name, texts)
    inputs = [tuple(keys[4 * place : 4 * place + 4]) for place in range(len(every))]
    groups: dict[tuple[bytes, ...], list[str]] = {}
    for word, key in zip(words, inputs, strict=False):
        groups.setdefault(key, []).append(word)
    unknown = [word for key in set(inputs[len(words) :]) for word in groups.pop(key, [])]
    kept = sum(words[group[0]] for group in groups.values())
    alike = max(groups.values(), key=len, default=[])
    return Vocabulary(
        name,
        len(words),
        len(groups),
        1 - kept / sum(words.values()),
        len(unknown),
        tuple(alike[:2]) if len(alike) > 1 else (),
        is_chosen=len(alike) == 1 and len(groups) > 2,
        is_sequence=moved == 0 or moved >= FEWEST_NUMBERS,
    )


def find_words_as_padding(
    subject: Subject, names: Sequence[str]
) -> tuple[str, list[str], float] | None:
    """Return frequent words with the code of padding, with their column and share of the rows.

    Such a word disappears after a text, where only padding follows, but not before it. Words that
    `encode` drops by design disappear at both ends. The columns hold texts, or lists of words.
    """
    for name in names:
        column = subject.train_rows[name]
        try:
            found = _find_vanished(subject, name)
        except Exception:  # a task may reject new texts
            continue
        if found:
            texts = column if column.dtype != pl.String else column.fill_null("").str.split(" ")
            has = texts.list.contains(pl.lit(found[0]))
            return name, found, float(has.mean() or 0.0)  # type: ignore[arg-type]
    return None


def _find_vanished(subject: Subject, name: str) -> list[str]:
    column = subject.train_rows[name].drop_nulls()
    is_list = column.dtype != pl.String
    texts = [each if is_list else each.split() for each in column]
    counts = Counter(word for text in texts for word in set(text) if is_list or word.isalnum())
    size = sum(each[0].numel() for each in inputs_of(subject.train).values())
    most = min(MOST_WORDS, BUDGET // (2 * max(size, 1)))
    words = [word for word, count in counts.most_common(most) if count >= FREQUENT_TEXTS]
    if is_list:  # which may drop a word that they hold already, as the last one itself
        rest = (([one], [word for word in words if word != one]) for one in words[:2])
        found = (_find_vanished_from(subject, name, *each) for each in rest)
        return next(filter(None, found), [])
    # A short text, so that there is room for one more word.
    short = sorted(dict.fromkeys(map(tuple, texts)), key=len)
    return _find_vanished_from(subject, name, short[len(short) // 10], words)


def _find_vanished_from(
    subject: Subject, name: str, context: Sequence[str], words: Sequence[str]
) -> list[str]:
    """Return the words that a context of words does not change for, at one end of it alone."""
    if len(words) < FEWEST_TO_LOSE:
        return []
    behind, before = ([*context, word] for word in words), ([word, *context] for word in words)
    texts = [[*context], *behind, *before]
    is_list = subject.train_rows[name].dtype != pl.String
    given = texts if is_list else [" ".join(text) for text in texts]
    _, (own, *keys) = _encode_texts(subject, name, given)
    pairs = list(zip(words, keys[: len(words)], keys[len(words) :], strict=True))
    at_end = [word for word, behind, before in pairs if behind == own != before]
    at_start = [word for word, behind, before in pairs if before == own != behind]
    found = max(at_end, at_start, key=len)
    # Where many disappear, texts are cut there.
    return found if len(found) <= max(PADDED_SHARE * len(words), 1) else []


def _encode_texts(
    subject: Subject, name: str, texts: Sequence[str] | Sequence[list[str]]
) -> tuple[int, list[bytes]]:
    """Return how many numbers of the inputs differ between these texts, and the inputs."""
    values = pl.Series(name, texts, dtype=subject.train_rows[name].dtype)
    inputs = inputs_of(subject.task.encode(repeat_row(subject, values)))
    flat = [tensor.reshape(len(texts), -1) for tensor in inputs.values()]
    moved = sum(int((each != each[:1]).any(dim=0).sum()) for each in flat)
    return moved, compute_example_keys(inputs)
