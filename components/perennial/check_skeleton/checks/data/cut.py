"""Truncated sequences: texts and lists of which one end never reaches the inputs.

Each element of a row is exchanged in turn. If those after the first few, or before the last few,
never change the inputs, the sequence is truncated. If as many positions of the tensor hold padding
in every row, there was room for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.check_skeleton.checks.data.signals import groups_of, probed_rows, signal_of
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL, inputs_of

ROWS, MOST_PLACES = 24, 64
FEWEST_PROBES = 16
WORDS = 3.0
# Tokens that mark a text's beginning and end.
MARKS = 2
# Most numbers encoded at once.
BUDGET = 20_000_000
READ_SHARE = 0.8
UNREAD_SHARE = 0.25
ROOMY_ROWS = 0.5
CLEAR_ERRORS, CLEAR_SHARE = 10.0, 0.1
NEXT = 0.5
Parts = list[object]
Moves = NDArray[np.bool_]


@dataclass(frozen=True)
class Cut:
    """A column whose sequences are truncated at one end.

    Attributes:
        column: Its name.
        kept: How many elements reach the inputs.
        is_front: Whether these are the first.
        unread: Share of the elements whose exchange changed nothing.
        has_room: Whether the tensor has room, as padding in every row, for what is cut.
    """

    column: str
    kept: int
    is_front: bool
    unread: float
    has_room: bool

    def __str__(self) -> str:
        return (
            f"only the {'first' if self.is_front else 'last'} {self.kept} elements of "
            f"{self.column} are read, {self.unread:.0%} of all are not"
        )


def find_cuts(subject: Subject) -> Iterator[Cut]:
    """Find truncated texts and lists among the features and the label."""
    label = subject.task.columns.label
    for name in dict.fromkeys([*subject.task.columns.features, label]):
        column = subject.train_rows[name]
        if _is_sequence(column) and not (name == label and subject.train[LABEL].ndim < 2):
            try:
                found = _cut(subject, column, of_label=name == label)
            except Exception:  # a task may take no elements of other rows
                continue
            if found:
                yield found


def describe_lost_end(subject: Subject, cut: Cut) -> str:
    """Describe the cut element's signal for the label, if far above that of all kept ones."""
    if subject.task.kind == "statistic" or subject.train[LABEL].ndim > 1:
        return ""
    rows, labels = probed_rows(subject)
    parts = [_parts(each) for each in rows[cut.column].to_list()]

    def explained(place: int) -> float:
        held = [str(each[place]) if -len(each) <= place < len(each) else "" for each in parts]
        signal = signal_of(groups_of(pl.Series(held)), labels)
        return signal.share if signal.errors > CLEAR_ERRORS else 0.0

    ends = range(cut.kept) if cut.is_front else range(-cut.kept, 0)
    lost, kept = explained(-1 if cut.is_front else 0), max(explained(place) for place in ends)
    if lost < CLEAR_SHARE or lost < 2 * kept:
        return ""
    which = "last" if cut.is_front else "first"
    return (
        f"the {which} one explains {lost:.1%} of the label's variance, those that are read at most "
        f"{kept:.1%}"
    )


def is_next_element(subject: Subject, cut: Cut) -> bool:
    """Whether the label is the element after the last one, which is cut off.

    In early prediction from the first elements, the label is something else, or the element right
    after those that are read.
    """
    rows, label = subject.train_rows, subject.train_rows[subject.task.columns.label]
    lists = rows[cut.column].to_list()
    if not cut.is_front or isinstance(lists[0], str):
        return False
    known = {element for each in lists for element in each}
    long = [(each, own) for each, own in zip(lists, label, strict=True) if len(each) > cut.kept]
    behind = np.mean([own == each[cut.kept] for each, own in long]) if long else 1.0
    return bool(np.mean([own in known for own in label]) > NEXT and behind < NEXT)


def _is_sequence(column: pl.Series) -> bool:
    kind = column.dtype
    if isinstance(kind, pl.List | pl.Array):
        return not kind.inner.is_nested() and not column.null_count()
    return kind == pl.String and not column.null_count()


def _parts(value: "str | Sequence[object]", by_word: bool = False) -> Parts:
    if isinstance(value, str):
        return list(value.split(" ")) if by_word else list(value)
    return list(value)


def _cut(subject: Subject, column: pl.Series, *, of_label: bool) -> Cut | None:
    is_text = column.dtype == pl.String
    by_word = is_text and float(np.mean([each.count(" ") for each in column])) >= WORDS
    parts = [_parts(each, by_word) for each in column.to_list()]
    probes, rows, changed = [], [], []
    for index in _chosen([len(each) for each in parts]):
        own, other = parts[index], parts[(index + 1) % len(parts)]
        for place in np.unique(np.linspace(0, len(own) - 1, MOST_PLACES).astype(int)).tolist():
            spare = [*other[place : place + 1], *other, *own]
            if new := [each for each in spare if each != own[place]]:
                probes.append((place, len(own) - 1 - place))
                rows.append(index)
                changed.append([*own[:place], new[0], *own[place + 1 :]])
    size = sum(each[0].numel() for each in subject.train.values())
    most = BUDGET // max(size, 1)
    if len(probes) < FEWEST_PROBES or most < FEWEST_PROBES:
        return None
    moved = _moved(subject, column, rows[:most], changed[:most], by_word=by_word, of_label=of_label)
    flat = [each.reshape(len(each), -1).any(axis=1) for each in moved.values()]
    read: Moves = np.any(np.stack(flat), axis=0)
    places = np.array(probes)[:most]
    if read.sum() < FEWEST_PROBES or (~read).mean() < UNREAD_SHARE:
        return None
    lengths = np.array([len(each) for each in parts])
    for is_front, place in ((True, places[:, 0]), (False, places[:, 1])):
        kept = int(place[read].max()) + 1
        is_read = float(np.mean(read[place < kept])) > READ_SHARE
        if is_read and float(np.mean(place[~read] >= kept)) > READ_SHARE:
            room = max(_room(subject, name, each, kept) for name, each in moved.items())
            if kept == 1 and is_text and not of_label:
                room = 0  # the first letter of a code is often taken
            is_roomy = (lengths[lengths > kept] - kept <= room).mean() >= ROOMY_ROWS
            return Cut(column.name, kept, is_front, float((~read).mean()), bool(is_roomy))
    return None


def _chosen(lengths: list[int]) -> list[int]:
    """Return indices of some of the longest rows and some of all, none of them empty."""
    order = sorted((place for place, size in enumerate(lengths) if size), key=lambda i: -lengths[i])
    half = ROWS // 2
    return list(dict.fromkeys([*order[:half], *order[:: max(len(order) // half, 1)]]))[:ROWS]


def _moved(
    subject: Subject, column: pl.Series, rows: list[int], changed: list[Parts], *,
    by_word: bool, of_label: bool,
) -> dict[str, Moves]:  # fmt: skip
    """Return tensor → the numbers that changed, for each exchange of one element."""
    before = subject.train_rows[rows]
    glue = " " if by_word else ""
    is_text = column.dtype == pl.String
    values = [glue.join(map(str, each)) for each in changed] if is_text else changed
    after = before.with_columns(pl.Series(column.name, values, dtype=column.dtype))
    one, two = subject.task.encode(before), subject.task.encode(after)
    names = [LABEL] if of_label else list(inputs_of(one))
    return {name: (one[name] != two[name]).numpy() for name in names}


def _room(subject: Subject, name: str, moved: Moves, kept: int) -> int:
    """Count positions at one end that are padding in every row, one position per element."""
    tensor, room = subject.train[name], 0
    for axis in range(1, min(tensor.ndim, 3)):
        flat = tensor.movedim(axis, 1).reshape(len(tensor), tensor.shape[axis], -1)
        places = np.moveaxis(moved, axis, 1).reshape(len(moved), tensor.shape[axis], -1).any(axis=2)
        if not places.any() or (places.sum(axis=1) > 1).any():
            continue
        for ordered in (flat, flat.flip(1)):
            is_padding = (ordered == ordered[0, 0]).all(dim=2).all(dim=0).long()
            free = int(is_padding.cumprod(dim=0).sum())
            if kept <= tensor.shape[axis] - free <= kept + MARKS:
                room = max(room, free)
    return room
