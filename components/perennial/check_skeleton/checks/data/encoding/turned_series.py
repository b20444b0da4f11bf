"""Find inputs in which one list runs forwards, and another one of the same steps backwards."""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import read_lists
from perennial.check_skeleton.subject import Floats, Subject
from perennial.engine.task import inputs_of

SHORTEST, MOST_LISTS, PLACES = 8, 12, 5
# Of a step that was changed: normalising by the window moves the others less.
CLEARLY = 2.0


def describe_turned_series(subject: Subject) -> str:
    """Describe two lists whose steps meet in opposite order in an input; empty if there are none.

    One step of one list is changed at a time, and the step of the input that changes most is noted.
    """
    rows, columns = subject.train_rows, subject.task.columns
    directions = dict[tuple[str, int], dict[int, str]]()
    for name in [each for each in columns.features if each != columns.label][:MOST_LISTS]:
        lists = read_lists(rows[name], with_gaps=True)
        if lists is None or lists.shape[1] < SHORTEST:
            continue
        for tensor, way in _find_ways(subject, name, lists).items():
            own = directions.setdefault((tensor, lists.shape[1]), {})
            own.setdefault(way, name)
            if len(own) == 2:
                return (
                    f"{tensor} holds the steps of {own[1]} in their order, and those of {own[-1]} "
                    "from the last to the first"
                )
    return ""


def _find_ways(subject: Subject, name: str, lists: Floats) -> dict[str, int]:
    """Return for each input whether it holds a list's steps forwards, 1, or backwards, -1."""
    length, row = lists.shape[1], int(np.isfinite(lists).all(axis=1).argmax())
    places = np.linspace(0, length - 1, PLACES + 2).astype(int)[1:-1]
    usual = lists[row]
    changed = np.tile(usual, (len(places) + 1, 1))
    step = 2 * float(np.nanstd(lists)) + 1e-6
    changed[np.arange(1, len(places) + 1), places] += step
    kind = subject.train_rows.schema[name]
    column = pl.Series(name, changed.tolist(), dtype=pl.List(pl.Float64)).cast(kind, strict=False)
    frame = subject.train_rows[[row] * len(changed)].with_columns(column)
    try:
        batch = inputs_of(subject.task.encode(frame))
    except Exception:  # a task may reject numbers that this check makes up
        return {}
    found = dict[str, int]()
    for key, tensor in batch.items():
        axes = [axis for axis in range(1, tensor.ndim) if tensor.shape[axis] == length]
        if len(axes) != 1 or not tensor.is_floating_point():
            continue
        numbers = np.moveaxis(tensor.double().numpy(), axes[0], 1).reshape(len(changed), length, -1)
        moved = np.abs(numbers[1:] - numbers[:1]).max(axis=2)  # [places, steps]
        ordered = np.sort(moved, axis=1)
        if not (ordered[:, -1] > CLEARLY * ordered[:, -2]).all():
            continue
        most = moved.argmax(axis=1)
        if np.array_equal(most, places):
            found[key] = 1
        elif np.array_equal(most, length - 1 - places):
            found[key] = -1
    return found
