"""Windows across the splits: which numbers and labels occur in training windows."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.borders import is_cut_at_borders
from perennial.check_skeleton.checks.data.signals import Numbers
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL

SHORTEST_WINDOW = 8
# Numbers at the end of a window that must occur in another one; longer ends are cut to it.
LONGEST_END = 16
FEWEST_PAIRS = 32
# Nearly all, as a series may have gaps.
AGREEING = 0.99
ROUNDING = 1e-4
# Relative to the changes from split to split of random rows; periods have few.
AS_AT_RANDOM = 0.5


def are_interleaved(subject: Subject) -> bool:
    """Whether rows of the splits alternate in time as at random, or have no known time."""
    time = subject.data.time if subject.data else None
    splits = (subject.train_rows, subject.validation_rows)
    if time is None or any(time not in rows.columns for rows in splits):
        return True
    both = pl.concat(
        rows.select(at=pl.col(time), is_held=pl.lit(number == 1))
        for number, rows in enumerate(splits)
    ).sort("at")
    held = both["is_held"].to_numpy()
    changes, share = float(np.mean(held[1:] != held[:-1])), float(held.mean())
    return changes > AS_AT_RANDOM * 2 * share * (1 - share)


def find_shared_windows(subject: Subject) -> tuple[str, float]:
    """Return the list column whose windows overlap most across the splits, and their share."""
    found = [("", 0.0)]
    for name, train, held in _windows(subject):
        size = train.shape[1] // 2
        known: set[int] = set()
        for start in range(train.shape[1] - size + 1):
            parts = train[:, start : start + size]
            moves = parts[:, 0] != parts[:, -1]  # a constant series repeats itself
            known.update(hash(each.tobytes()) for each in parts[moves])
        middle = held[:, size // 2 : size // 2 + size]
        found.append((name, float(np.mean([hash(each.tobytes()) in known for each in middle]))))
    return max(found, key=lambda each: each[1])


def find_known_targets(subject: Subject) -> tuple[str, float]:
    """Return the column whose training windows hold validation labels, and the share of rows.

    A validation window's end is searched in training windows; the number after it there must be
    the label, or determine the class, in nearly every row where the end was found.
    """
    found = [("", 0.0)]
    labels = subject.validation[LABEL].double().reshape(len(subject.validation[LABEL]), -1).numpy()
    for name, train, held in _windows(subject):
        size = min(train.shape[1] // 2, LONGEST_END)
        places: dict[int, tuple[int, int]] = {}
        for start in range(train.shape[1] - size):
            parts = train[:, start : start + size]
            for row in np.flatnonzero(parts[:, 0] != parts[:, -1]):
                places.setdefault(hash(parts[row].tobytes()), (int(row), start + size))
        ends = [places.get(hash(each.tobytes())) for each in held[:, -size:]]
        for ahead in range(train.shape[1] - size):
            pairs = [
                (train[place[0], place[1] + ahead], held[row, -1], labels[row, 0])
                for row, place in enumerate(ends)
                if place is not None and place[1] + ahead < train.shape[1]
            ]
            share = len(pairs) / max(len(held), 1)
            if len(pairs) < FEWEST_PAIRS or share <= max(each[1] for each in found):
                break
            if _follow(*np.array(pairs).T, is_number=subject.task.kind == "regression"):
                found.append((name, share))
                break
    return max(found, key=lambda each: each[1])


def _follow(values: Numbers, last: Numbers, labels: Numbers, *, is_number: bool) -> bool:
    """Whether labels are the values in another unit, or classes of their change."""
    if not is_number:
        return is_cut_at_borders(values - last, labels)
    if min(values.std(), labels.std()) == 0:
        return False
    slope, base = np.polyfit(values, labels, 1)
    left = np.abs(slope * values + base - labels) / labels.std()
    return bool(np.mean(left < ROUNDING) >= AGREEING)


def _windows(subject: Subject) -> Iterator[tuple[str, Numbers, Numbers]]:
    """Yield lists of numbers, and tables of eight or more columns, of both splits, [N, L]."""
    splits = (subject.train_rows, subject.validation_rows)
    single = []
    for name in subject.task.columns.features:
        kind = splits[0][name].dtype
        if kind.is_float() and not any(rows[name].null_count() for rows in splits):
            single.append(name)
        if not isinstance(kind, pl.List | pl.Array) or not kind.inner.is_float():
            continue
        train, held = (
            [np.asarray(each, dtype=np.float64) for each in rows[name].drop_nulls().to_list()]
            for rows in splits
        )
        lengths = {len(each) for each in (*train, *held)}
        whole = all(not rows[name].null_count() for rows in splits)
        if len(lengths) == 1 and min(lengths) >= SHORTEST_WINDOW and whole:
            yield name, np.stack(train), np.stack(held)
    if len(single) >= SHORTEST_WINDOW:
        lags = [rows.select(single).to_numpy().astype(np.float64) for rows in splits]
        yield f"{single[0]} … {single[-1]}", lags[0], lags[1]
        backwards = [np.ascontiguousarray(each[:, ::-1]) for each in lags]
        yield f"{single[-1]} … {single[0]}", backwards[0], backwards[1]
