"""Which blocks are compared: the reference's complete ones and the complete ones after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from components.contracts.errors import PerennialError
from components.contracts.monitoring import Reference
from components.contracts.validation import BlockSketch

MIN_COVERAGE = 0.9
"""Share of its time that the newest block must cover to count as complete; a day that ends in the
evening is complete."""
MIN_ROWS_SHARE = 0.5
"""Of the reference's median rows per block; a thinner block varies more than the yardstick
knows."""


@dataclass(frozen=True)
class Chosen:
    """The blocks to compare, and what was left out.

    Attributes:
        reference: In time order.
        windows: In time order.
        notes: One sentence for each kind of block or column left out.
    """

    reference: tuple[BlockSketch, ...]
    windows: tuple[BlockSketch, ...]
    notes: tuple[str, ...]


def choose_blocks(
    reference: Reference, current: Sequence[BlockSketch], time_max: datetime | None
) -> Chosen:
    """The complete, full blocks of the reference and those that start after its newest row.

    Args:
        reference: The champion's.
        current: Blocks of the newest snapshot.
        time_max: Time of its newest row.

    Raises:
        PerennialError: the blocks have another length than the reference's.
    """
    known = _complete(reference.blocks, reference.time_max)
    old = _full(known, known)
    if reference.time_max is None or time_max is None:
        return Chosen((), (), ("the dataset has no time column: there are no blocks to compare",))
    later = [block for block in current if block.start >= reference.time_max]
    _require_one_length(old, later)
    complete = _complete(later, time_max)
    windows = _full(complete, old)
    notes = []
    if not old:
        notes.append("the champion's snapshot holds no complete block")
    elif not windows:
        notes.append(f"no complete block of new data since {reference.time_max:%Y-%m-%d}")
    if len(complete) < len(later):
        notes.append(f"the block from {later[-1].start:%Y-%m-%d} on is not complete yet")
    if thin := len(complete) - len(windows):
        notes.append(
            f"{thin} of {len(complete)} new blocks hold less than {MIN_ROWS_SHARE:.0%} of the "
            "reference's usual rows and were not judged"
        )
    # Without a yardstick there is nothing to judge windows by.
    return Chosen(old, windows if old else (), (*notes, *_column_notes(old, windows)))


def newest_streak(alarms: Sequence[bool]) -> int:
    """How many of the newest windows alarmed without a break."""
    streak = 0
    for alarmed in reversed(alarms):
        if not alarmed:
            break
        streak += 1
    return streak


def _complete(blocks: Sequence[BlockSketch], time_max: datetime | None) -> tuple[BlockSketch, ...]:
    if time_max is None:
        return ()
    return tuple(
        block
        for block in blocks
        if time_max - block.start >= MIN_COVERAGE * (block.end - block.start)
    )


def _full(blocks: Sequence[BlockSketch], usual: Sequence[BlockSketch]) -> tuple[BlockSketch, ...]:
    if not usual:
        return tuple(blocks)
    enough = MIN_ROWS_SHARE * float(np.median([block.rows for block in usual]))
    return tuple(block for block in blocks if block.rows >= enough)


def _require_one_length(old: Sequence[BlockSketch], new: Sequence[BlockSketch]) -> None:
    lengths: set[timedelta] = {block.end - block.start for block in (*old, *new)}
    if len(lengths) > 1:
        days = " and ".join(f"{length / timedelta(days=1):g}" for length in sorted(lengths))
        raise PerennialError(
            "the champion's reference was made with other blocks than this snapshot's",
            evidence=f"blocks of {days} days",
            action="set data.block_days back to the champion's value, or retrain by hand to "
            "give the next champion a reference of the new length",
        )


def _column_notes(old: Sequence[BlockSketch], windows: Sequence[BlockSketch]) -> list[str]:
    if not old or not windows:
        return []
    before, now = _kinds(old[0]), _kinds(windows[-1])
    notes = []
    if gone := sorted(before - now):
        notes.append(f"not judged, because gone or of another kind now: {_listed(gone)}")
    if added := sorted(now - before):
        notes.append(f"not judged, because the reference does not know: {_listed(added)}")
    return notes


def _kinds(block: BlockSketch) -> set[tuple[str, str]]:
    numbers = {(name, "numeric") for name in block.numeric}
    return numbers | {(name, "categorical") for name in block.categorical}


def _listed(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in columns)
