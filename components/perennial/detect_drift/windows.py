"""Windows: choose the complete blocks of the reference and those after it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

import numpy as np
import polars as pl

from perennial.contracts.block import Block
from perennial.contracts.errors import PerennialError
from perennial.contracts.monitoring import Reference
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.contracts.validation import OTHER, BlockSketch, CategoricalSketch
from perennial.data.dataset import ZONE, Dataset
from perennial.detect_drift.reference import MIN_BLOCKS
from perennial.reports.text import counted

MIN_COVERAGE = 0.9
"""Share of its time that the newest block must cover to be complete; a day that ends in the evening
is complete."""
MIN_ROWS_SHARE = 0.5
"""Minimum share of the reference's median rows per block; smaller blocks vary more."""
MIN_ROWS = 20
"""Minimum median rows of a reference block; below it, false alarms were not measured."""


@dataclass(frozen=True)
class Chosen:
    """The blocks to compare, with notes on what was left out.

    Attributes:
        notes: One sentence for each kind of block or column left out.
        by_file: Whether the blocks are files, in order of arrival.
    """

    reference: tuple[BlockSketch, ...]
    windows: tuple[BlockSketch, ...]
    notes: tuple[str, ...]
    by_file: bool = False

    def reason_to_skip(self, triggers: TriggersSection) -> str:
        """Return why drift is not judged on these blocks; empty if it is."""
        if not self.windows:
            return self.notes[0]
        count = len(self.reference)
        if count < MIN_BLOCKS:
            return self._too_few_blocks(count)
        rows = float(np.median([block.rows for block in self.reference]))
        if rows < MIN_ROWS:
            length = "triggers.files_in_a_block" if self.by_file else "data.block_days"
            return (
                f"the reference's blocks have {rows:.0f} rows in the median, minimum {MIN_ROWS}: "
                f"raise {length}"
            )
        return self._unseen_season(triggers.season_days) if triggers.season_days else ""

    def _unseen_season(self, season_days: int) -> str:
        if self.by_file:
            return (
                "triggers.season_days is set, but files have no dates: set data.time, or remove "
                "triggers.season_days"
            )
        covered = (_span(self.reference[-1])[1] - _span(self.reference[0])[0]) / timedelta(days=1)
        if covered >= season_days:
            return ""
        return (
            f"the champion's reference covers {covered:.0f} days, but triggers.season_days is "
            f"{season_days}: a season missing from the reference looks like drift"
        )

    def _too_few_blocks(self, count: int) -> str:
        blocks = counted(count, "complete block")
        advice = "lower data.block_days"
        if self.by_file:
            size = len(self.reference[0].files) if self.reference else 1
            blocks = f"{counted(count, 'block')} of files to compare with"
            advice = (
                "lower triggers.files_in_a_block"
                if size > 1
                else "write new data to separate files and train on five or more, or set data.time"
            )
        return (
            f"the champion's snapshot has {blocks}, minimum {MIN_BLOCKS} to estimate the "
            f"variation between blocks: {advice}"
        )


def choose_blocks(
    reference: Reference, current: Sequence[BlockSketch], snapshot: Snapshot
) -> Chosen:
    """Choose the complete, full blocks of the reference and those after its newest row.

    Raises:
        PerennialError: the blocks have another length than the reference's.
    """
    if snapshot.time_max is None:
        return Chosen((), (), ("the time column has no values: there are no blocks to compare",))
    if reference.time_max is None:
        note = "the champion was trained without a time column, so its reference has no time blocks"
        return Chosen((), (), (f"{note}; the next champion's will",))
    dtype = snapshot.columns.get(snapshot.data.time or "", "")
    time_max = _local_time(snapshot.time_max, dtype)
    champion_until = _local_time(reference.time_max, dtype)
    known = _complete(reference.blocks, champion_until)
    old = full_blocks(known, known)
    # A block that begins before the champion's newest row is no window: it was trained on in part.
    # So was one that begins with that row, as each day of dates without a time does.
    trained_on = {block.start for block in reference.blocks}
    later = [
        block
        for block in current
        if _span(block)[0] >= champion_until and block.start not in trained_on
    ]
    _require_one_length(old, later)
    complete = _complete(later, time_max)
    windows = full_blocks(complete, old)
    notes = []
    if not old:
        notes.append("the champion's snapshot has no complete block")
    elif not windows:
        notes.append(f"no complete block of new data since {champion_until:%Y-%m-%d}")
    if len(complete) < len(later):
        notes.append(f"the block from {later[-1].title} on is incomplete")
    if thin := len(complete) - len(windows):
        notes.append(
            f"{thin} of {len(complete)} new blocks have less than {MIN_ROWS_SHARE:.0%} of the "
            "reference's median rows and were not judged"
        )
    # Without a reference, windows cannot be judged.
    windows = windows if old else ()
    return Chosen(*align_categories(old, windows), (*notes, *column_notes(old, windows)))


def align_categories(
    old: Sequence[BlockSketch], new: Sequence[BlockSketch]
) -> tuple[tuple[BlockSketch, ...], tuple[BlockSketch, ...]]:
    """Return both sides with the same meaning of "other".

    Each snapshot counts its own most frequent values by name. A value that one side does not name
    may be among its others, so the other side must not name it either.
    """
    before, after = _named_categories(old), _named_categories(new)
    return (
        tuple(_merged(block, after) for block in old),
        tuple(_merged(block, before) for block in new),
    )


def block_positions(snapshot: Snapshot, blocks: Sequence[Block]) -> dict[date | int, int]:
    """Return `block_key` of rows of the snapshot → position of their block."""
    if snapshot.data.time:
        starts = [(block.start, position) for position, block in enumerate(blocks)]
        return {start.date(): position for start, position in starts if start is not None}
    by_digest = {
        file.sha256: position for position, block in enumerate(blocks) for file in block.files
    }
    return {
        number: by_digest[file.sha256]
        for number, file in enumerate(snapshot.files)
        if file.sha256 in by_digest
    }


def scan_blocks(snapshot: Snapshot, blocks: Sequence[Block]) -> pl.LazyFrame:
    """Return the rows of partitions that may hold rows of these blocks; no others are fetched.

    With their files, where the snapshot has no time column.
    """
    keys = [*block_positions(snapshot, blocks)]
    days = [key for key in keys if isinstance(key, date)]
    places = [key for key in keys if not isinstance(key, date)]
    if days:
        last = max(days) + timedelta(days=snapshot.data.block_days)
        places = [*snapshot.files_between(min(days), last)]
    return Dataset(snapshot).scan(with_file=not snapshot.data.time, files=places)


def newest_streak(alarms: Sequence[bool]) -> int:
    """Return how many of the newest windows alarmed without a break."""
    return next((i for i, alarmed in enumerate(reversed(alarms)) if not alarmed), len(alarms))


def _local_time(moment: datetime, dtype: str) -> datetime:
    """Convert to the column's own time zone, in which blocks are cut; snapshots use UTC."""
    zone = ZONE.search(dtype)
    if moment.tzinfo is None or zone is None:
        return moment.replace(tzinfo=None)
    local = pl.Series([moment]).dt.convert_time_zone(zone[1]).dt.replace_time_zone(None)
    clock: datetime = local.item()
    return clock


def _named_categories(blocks: Sequence[BlockSketch]) -> dict[str, set[str]]:
    """Return column → named values, for columns that also have other values."""
    named: dict[str, set[str]] = {}
    for block in blocks:
        for column, sketch in block.categorical.items():
            named.setdefault(column, set()).update(sketch.counts)
    return {column: values for column, values in named.items() if OTHER in values}


def _merged(block: BlockSketch, named: dict[str, set[str]]) -> BlockSketch:
    categorical = dict(block.categorical)
    for column in categorical.keys() & named.keys():
        sketch = categorical[column]
        counts: Counter[str] = Counter()
        for value, count in sketch.counts.items():
            counts[value if value in named[column] else OTHER] += count
        categorical[column] = CategoricalSketch(counts=dict(counts), nulls=sketch.nulls)
    return block.model_copy(update={"categorical": categorical})


def _complete(blocks: Sequence[BlockSketch], time_max: datetime) -> tuple[BlockSketch, ...]:
    # A date, as most times at midnight are, counts as its noon: the day may not be over.
    until = time_max + timedelta(hours=12) if time_max.time() == time.min else time_max
    spans = [(block, *_span(block)) for block in blocks]
    return tuple(
        block for block, start, end in spans if until - start >= MIN_COVERAGE * (end - start)
    )


def _span(block: BlockSketch) -> tuple[datetime, datetime]:
    if block.start is None or block.end is None:
        raise ValueError(f"{block.title} is not a block of time")
    return block.start, block.end


def full_blocks(
    blocks: Sequence[BlockSketch], usual: Sequence[BlockSketch]
) -> tuple[BlockSketch, ...]:
    """Return the blocks with at least half of the median rows."""
    if not usual:
        return tuple(blocks)
    enough = MIN_ROWS_SHARE * float(np.median([block.rows for block in usual]))
    return tuple(block for block in blocks if block.rows >= enough)


def _require_one_length(old: Sequence[BlockSketch], new: Sequence[BlockSketch]) -> None:
    spans = [_span(block) for block in (*old, *new)]
    lengths: set[timedelta] = {end - start for start, end in spans}
    if len(lengths) > 1:
        days = " and ".join(f"{length / timedelta(days=1):g}" for length in sorted(lengths))
        raise PerennialError(
            "the blocks of the champion's reference and of this snapshot differ in length",
            evidence=f"blocks of {days} days",
            action="set data.block_days back to the champion's value, or retrain by hand: the next "
            "champion's reference has blocks of the new length",
        )


def column_notes(old: Sequence[BlockSketch], windows: Sequence[BlockSketch]) -> list[str]:
    """Return notes on columns that only one side has."""
    if not old or not windows:
        return []
    before, now = _kinds(old[0]), _kinds(windows[-1])
    notes = []
    if gone := sorted(before - now):
        notes.append(f"not judged, because removed or of another kind: {_listed(gone)}")
    if added := sorted(now - before):
        notes.append(f"not judged, because not in the reference: {_listed(added)}")
    return notes


def _kinds(block: BlockSketch) -> set[tuple[str, str]]:
    numbers = {(name, "numeric") for name in block.numeric}
    return numbers | {(name, "categorical") for name in block.categorical}


def _listed(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in columns)
