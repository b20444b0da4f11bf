"""Find numbers in texts that tell of the label, and that `encode` drops, as some tokenizers do."""

import re
from collections import Counter

import polars as pl

from perennial.check_skeleton.checks.data.signals import (
    group_values,
    is_free_text,
    is_input_changed,
    measure_signal,
    probe_rows,
    read_labels,
)
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult

# A number and the word behind it, as 54,2 m or 3 rooms.
NUMBER = re.compile(r"(\d+(?:[.,]\d+)?)\s*([^\W\d_]+)")
FEWEST_NUMBERS, MOST_WORDS = 10, 8
FREQUENT = 0.5  # of the texts
CLEAR_SHARE, CLEAR_ERRORS = 0.1, 10.0
ROWS = 64


def judge_lost_numbers(judge: Judge, subject: Subject) -> CheckResult | None:
    """Fail a text's numbers that explain much of the label and reach no input; None if none do."""
    if not read_labels(subject):
        return None
    rows, labels = probe_rows(subject)
    for name in subject.task.columns.features:
        if name == subject.task.columns.label or not is_free_text(rows[name]):
            continue
        found = [
            {word.lower(): number for number, word in reversed(NUMBER.findall(text or ""))}
            for text in rows[name]
        ]
        counts = Counter(word for each in found for word in each)
        for word, count in counts.most_common(MOST_WORDS):
            if count < FREQUENT * len(found):
                break
            written = [each.get(word) for each in found]
            numbers = pl.Series([each and float(each.replace(",", ".")) for each in written])
            signal = measure_signal(group_values(numbers), labels)
            is_clear = signal.share > CLEAR_SHARE and signal.errors > CLEAR_ERRORS
            if numbers.n_unique() < FEWEST_NUMBERS or not is_clear:
                continue
            if not _is_read(subject, rows, name, written):
                return judge.failed(
                    f"no input changes with the number before {word!r} in {name}, which explains "
                    f"{signal.share:.0%} of the label's variance",
                    hint="the tokenizer drops digits, or makes one token of all numbers: keep them "
                    "as words, or give their values beside the tokens",
                )
    return None


def _is_read(subject: Subject, rows: pl.DataFrame, name: str, written: list[str | None]) -> bool:
    """Whether inputs change where a number is replaced by that of another text."""
    places = [place for place, own in enumerate(written) if own is not None][:ROWS]
    own = rows[places]
    others = [written[place] for place in (*places[1:], places[0])]
    changed = [
        text.replace(str(written[place]), str(other), 1)
        for place, text, other in zip(places, own[name], others, strict=True)
    ]
    return is_input_changed(subject, own, own.with_columns(pl.Series(name, changed)))
