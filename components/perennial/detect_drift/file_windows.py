"""Windows of files, for data without a time column: the champion's files and newer ones."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from perennial.clients.object_store import ObjectStore, StoredRecord
from perennial.contracts.block import by_name
from perennial.contracts.errors import join_names
from perennial.contracts.gate import BlockPerformance
from perennial.contracts.monitoring import Reference
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import BlockSketch, CategoricalSketch, NumericSketch
from perennial.detect_drift.windows import (
    MIN_ROWS_SHARE,
    Chosen,
    align_categories,
    column_notes,
    full_blocks,
)
from perennial.reports.text import counted


class ArrivedFiles(Section):
    """All files of a model's data that monitoring has read."""

    schema_version: int = 1
    """Incremented when a field changes its meaning."""
    sha256: tuple[str, ...] = ()
    """In order of the first snapshots that contained them; within one snapshot by name."""


def record_arrivals(
    store: ObjectStore, model: str, snapshots: Sequence[Snapshot]
) -> Mapping[str, int]:
    """Record new files; return every file's position in the order of arrival.

    The record is `monitoring/<model>/files.json`; of the snapshots, the oldest comes first.

    Returns:
        SHA-256 → position. A file that was rewritten counts as another file.

    Raises:
        PerennialError: the record is damaged, or other writers keep conflicting.
    """

    def with_new(stored: ArrivedFiles | None) -> tuple[ArrivedFiles, Mapping[str, int]]:
        order = dict.fromkeys((stored or ArrivedFiles()).sha256)
        for snapshot in snapshots:
            files = dict(zip(snapshot.paths, snapshot.files, strict=True))
            # A dict keeps the place of a key that it has, so files that arrived earlier stay first.
            order |= dict.fromkeys(files[path].sha256 for path in sorted(files, key=by_name))
        places = {digest: place for place, digest in enumerate(order)}
        return ArrivedFiles(sha256=tuple(order)), places

    return StoredRecord(
        store,
        f"monitoring/{model}/files.json",
        ArrivedFiles,
        f"the order in which the files of {model} arrived",
        "delete it: the next monitoring orders the files of each snapshot by name",
    ).update(with_new)


SHOWN_FILES = 3
NEWEST_REFERENCE, NEWEST_WINDOWS = 365, 60
"""Maximum number of file blocks to compare: twenty columns then take 10 s and 0.5 GB."""


def choose_files(
    reference: Reference,
    known: Snapshot,
    current: Sequence[BlockSketch],
    snapshot: Snapshot,
    *,
    arrivals: Mapping[str, int],
    files_in_a_block: int,
) -> Chosen:
    """Choose the files of the champion's snapshot, and those whose bytes are not in it."""
    trained_on = {file.sha256 for file in known.files}
    later = [block for block in current if block.files[0].sha256 not in trained_on]
    if reason := _no_reference(reference):
        return Chosen((), (), (reason,), by_file=True)
    old = _in_order(reference.blocks, arrivals)
    new = _in_order(later, arrivals)
    # Surplus files are the oldest of the reference, so that windows follow it without a gap.
    known_groups = _grouped(old[len(old) % files_in_a_block :], files_in_a_block)
    groups = _grouped(new, files_in_a_block)
    full = full_blocks(known_groups, known_groups)
    windows = full_blocks(groups, known_groups) if full else ()
    notes = [] if windows else [_nothing_new(full, new, files_in_a_block)]
    if waiting := len(new) % files_in_a_block:
        notes.append(
            f"the newest block is incomplete: it has {waiting} of {files_in_a_block} files"
        )
    if full and (thin := len(groups) - len(windows)):
        notes.append(
            f"{thin} of {len(groups)} new blocks of files have less than {MIN_ROWS_SHARE:.0%} of "
            "the reference's median rows and were not judged: raise triggers.files_in_a_block"
        )
    notes += _file_notes(known, snapshot, trained_on, len(later))
    full = _newest(full, NEWEST_REFERENCE, "reference blocks", notes)
    windows = _newest(windows, NEWEST_WINDOWS, "new blocks", notes)
    aligned = align_categories(full, windows)
    return Chosen(*aligned, (*notes, *column_notes(full, windows)), by_file=True)


def _newest(
    blocks: tuple[BlockSketch, ...], limit: int, what: str, notes: list[str]
) -> tuple[BlockSketch, ...]:
    if len(blocks) > limit:
        notes.append(
            f"the newest {limit} of {len(blocks):,} {what} were compared: raise "
            "triggers.files_in_a_block to cover more files"
        )
    return blocks[-limit:]


def performance_of(
    performance: Sequence[BlockPerformance], blocks: Sequence[BlockSketch]
) -> tuple[BlockPerformance, ...]:
    """Return the mean loss on held-out rows in each block of files that has any."""
    measured = {part.files[0].sha256: part for part in performance if part.files}
    found = []
    for block in blocks:
        parts = [measured[file.sha256] for file in block.files if file.sha256 in measured]
        if rows := sum(part.rows for part in parts):
            loss = sum(part.rows * part.loss for part in parts) / rows
            found.append(BlockPerformance(files=block.files, rows=rows, loss=loss))
    return tuple(found)


def merge_sketches(blocks: Sequence[BlockSketch]) -> BlockSketch:
    """Merge the sketches of several files."""
    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0]
    labels = [(block.label_mean, block.rows) for block in blocks if block.label_mean is not None]
    total = sum(rows for _, rows in labels)
    return BlockSketch(
        files=tuple(file for block in blocks for file in block.files),
        rows=sum(block.rows for block in blocks),
        label_mean=sum(mean * rows for mean, rows in labels) / total if total else None,
        numeric={name: _merged_numbers(blocks, name) for name in first.numeric},
        categorical={name: _merged_categories(blocks, name) for name in first.categorical},
    )


def _merged_numbers(blocks: Sequence[BlockSketch], name: str) -> NumericSketch:
    """Merge quantiles, with files weighted by their rows."""
    sketches = [block.numeric[name] for block in blocks]
    nulls = sum(sketch.nulls for sketch in sketches)
    known = [
        (sketch.quantiles, block.rows - sketch.nulls)
        for block, sketch in zip(blocks, sketches, strict=True)
        if sketch.quantiles
    ]
    if not known:
        return NumericSketch(quantiles=(), nulls=nulls)
    values = np.concatenate([quantiles for quantiles, _ in known])
    weights = np.concatenate([np.full(len(q), rows / len(q)) for q, rows in known])
    order = np.argsort(values, kind="stable")
    ranks = np.cumsum(weights[order])
    span = ranks[-1] - ranks[0]
    # From the smallest value to the largest, like the quantiles of one file.
    levels = (ranks - ranks[0]) / span if span else np.zeros(len(ranks))
    size = max(len(quantiles) for quantiles, _ in known)
    merged = np.interp(np.linspace(0, 1, size), levels, values[order])
    return NumericSketch(quantiles=tuple(merged.tolist()), nulls=nulls)


def _merged_categories(blocks: Sequence[BlockSketch], name: str) -> CategoricalSketch:
    sketches = [block.categorical[name] for block in blocks]
    counts: Counter[str] = Counter()
    for sketch in sketches:
        counts.update(sketch.counts)
    return CategoricalSketch(counts=dict(counts), nulls=sum(sketch.nulls for sketch in sketches))


def _no_reference(reference: Reference) -> str:
    if reference.time_max is not None:
        return (
            "the champion was trained on data with a time column, and this snapshot has none: set "
            "data.time again, or retrain by hand to give the next champion a reference of files"
        )
    if not reference.blocks:
        return (
            "the champion was registered before files were compared: its reference has no blocks "
            "of files; the next champion's will"
        )
    return ""


def _nothing_new(
    reference: Sequence[BlockSketch], new: Sequence[BlockSketch], files_in_a_block: int
) -> str:
    if not reference:
        return (
            f"the champion's snapshot has fewer files than triggers.files_in_a_block "
            f"({files_in_a_block})"
        )
    if not new:
        return "no new file since the champion's training"
    return f"no complete block in {counted(len(new), 'new file')} since the champion's training"


def _in_order(blocks: Sequence[BlockSketch], arrivals: Mapping[str, int]) -> list[BlockSketch]:
    """Sort blocks by arrival; copies of one file count once."""
    unique = {block.files[0].sha256: block for block in blocks}
    return sorted(unique.values(), key=lambda block: arrivals[block.files[0].sha256])


def _grouped(blocks: Sequence[BlockSketch], size: int) -> tuple[BlockSketch, ...]:
    starts = range(0, len(blocks) - size + 1, size)
    return tuple(merge_sketches(blocks[start : start + size]) for start in starts)


def _file_notes(
    known: Snapshot, snapshot: Snapshot, trained_on: set[str], num_sketched: int
) -> list[str]:
    named = zip(snapshot.paths, snapshot.files, strict=True)
    new = [path for path, file in named if file.sha256 not in trained_on]
    notes = []
    if rewritten := sorted(set(new) & set(known.paths)):
        notes.append(
            "rewritten since the champion's training, and so compared as new: "
            + join_names(rewritten, SHOWN_FILES)
        )
    if num_sketched < len(new):
        notes.append(
            f"{len(new) - num_sketched} of {counted(len(new), 'new file')} were not compared: "
            "validation describes only the last 1,000 files by name; write larger files"
        )
    return notes
