"""Performance decay: the champion's loss on new labelled rows, block by block.

A day's mean loss varies several times more than independent rows would, so the limit is based on
the spread between the champion's own held-out blocks, not on rows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from torch import nn

from perennial.clients.pyfunc_flavor import CODE_FOLDER
from perennial.contracts.errors import BadDataError
from perennial.contracts.gate import BlockPerformance
from perennial.contracts.monitoring import WindowDrift
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.data.dataset import FILE_COLUMN, block_key
from perennial.detect_drift.deviations import MIN_Z_SCORE
from perennial.detect_drift.reference import student_limit
from perennial.detect_drift.windows import block_positions, scan_blocks
from perennial.engine.evaluation.processes import (
    ScoringRequest,
    Shards,
    load_shared,
)
from perennial.engine.evaluation.scoring import Share, device_of, score_batch
from perennial.engine.export import load_exported_task
from perennial.engine.scoring_worker import score_share
from perennial.engine.serving.carried_code import carried_modules
from perennial.engine.task import Task, to_device

MIN_LOSS_BLOCKS = 3
"""Below this number of held-out blocks, their spread is not reliable."""
MIN_ROWS_SHARE = 0.5
"""Minimum share of the median rows per held-out block: a split may leave only a day of a block."""


@dataclass(frozen=True)
class LossLimit:
    """Ordinary range of the champion's mean loss in one block.

    Attributes:
        mean: Mean over its held-out blocks.
        spread: Standard deviation between them.
        limit: Above it, performance has decayed.
        blocks: Number of held-out blocks.
    """

    mean: float
    spread: float
    limit: float
    blocks: int


def loss_limit(
    reference: Sequence[BlockPerformance], triggers: TriggersSection
) -> LossLimit | None:
    """Return the limit from the champion's held-out blocks; None if there are too few.

    Three standard deviations or, for few blocks, Student's quantile at the false-alarm level; but
    never less than the relevant rise.
    """
    usual = float(np.median([block.rows for block in reference])) if reference else 0.0
    losses = [block.loss for block in reference if block.rows >= MIN_ROWS_SHARE * usual]
    if len(losses) < MIN_LOSS_BLOCKS:
        return None
    mean = float(np.mean(losses))
    floor = triggers.decay_floor * abs(mean)
    # Equal losses give no spread to divide by; a tenth of the relevant rise is negligible.
    spread = max(float(np.std(losses, ddof=1)), floor / 10, math.ulp(mean))
    steps = max(MIN_Z_SCORE, student_limit(len(losses), triggers.false_alarm_level))
    return LossLimit(mean, spread, mean + max(steps * spread, floor), len(losses))


def judge_losses(
    windows: Sequence[WindowDrift],
    losses: Sequence[BlockPerformance],
    limit: LossLimit | None,
    triggers: TriggersSection,
) -> tuple[WindowDrift, ...]:
    """Return the windows with the champion's loss, judged if there are enough labels."""
    measured = {(loss.start, loss.files): loss for loss in losses}
    return tuple(
        _judge_loss(window, measured.get((window.start, window.files)), limit, triggers)
        for window in windows
    )


def window_losses(
    task: Task,
    model: nn.Module,
    rows: pl.LazyFrame,
    snapshot: Snapshot,
    windows: Sequence[WindowDrift],
) -> tuple[BlockPerformance, ...]:
    """Return the model's mean loss on the labelled rows of each window that has any.

    Every split counts: whatever its split, a row after the champion's snapshot is new to it.

    Raises:
        BadDataError: a row makes the loss infinite, or has a label unknown to the champion.
    """
    position = block_positions(snapshot, windows)
    label = pl.col(snapshot.data.label)
    if rows.collect_schema()[snapshot.data.label].is_float():
        label = label.fill_nan(None)
    block = block_key(snapshot.data)
    wanted = rows.filter(label.is_not_null(), block.is_in(list(position)))
    sums, weights, counts = (np.zeros(len(windows)) for _ in range(3))
    device = device_of(model)
    for batch in wanted.collect_batches(chunk_size=task.scoring_rows, maintain_order=True):
        found = batch.select(block.replace_strict(position, return_dtype=pl.Int64))
        window = found.to_series().to_numpy()
        encoded = task.encode(batch.drop(FILE_COLUMN, strict=False))
        scored = score_batch(task, model, to_device(encoded, device))
        np.add.at(sums, window, scored.weights * scored.losses)
        np.add.at(weights, window, scored.weights)
        np.add.at(counts, window, 1)
    if not np.isfinite(sums).all():
        broken = windows[int(np.argmin(np.isfinite(sums)))]
        raise BadDataError(
            "the champion's loss is not finite on new rows",
            evidence=f"in the block from {broken.title} on"
            if broken.start
            else f"in {broken.title}",
            action="look for infinite or extreme feature values there, and set a range for them "
            "under `expectations`",
        )
    return tuple(
        BlockPerformance(
            start=window.start, files=window.files, rows=int(count), loss=float(total / weight)
        )
        for window, total, weight, count in zip(windows, sums, weights, counts, strict=True)
        if weight
    )


def _judge_loss(
    window: WindowDrift,
    measured: BlockPerformance | None,
    limit: LossLimit | None,
    triggers: TriggersSection,
) -> WindowDrift:
    if measured is None:
        return window
    enough = max(triggers.min_labelled_rows, triggers.min_label_coverage * window.rows)
    if limit is None or measured.rows < enough:
        return window.model_copy(update={"loss": measured.loss})
    return window.model_copy(
        update={
            "loss": measured.loss,
            "loss_z_score": (measured.loss - limit.mean) / limit.spread,
            "decayed": measured.loss > limit.limit,
        }
    )


MODULE = "perennial.detect_drift.performance"


class Request(ScoringRequest):
    """The request to every process."""

    model: str
    """Folder of the champion, whose weights were verified."""
    snapshot: str
    """Folder of the `Snapshot`."""
    windows: tuple[WindowDrift, ...]


class Losses(Section):
    """The losses of all windows that have labelled rows."""

    losses: tuple[BlockPerformance, ...]


def sharded_losses(
    model: Path, snapshot: Snapshot, windows: Sequence[WindowDrift], shards: Shards
) -> tuple[BlockPerformance, ...]:
    """Return what `window_losses` does, of a model that is divided over processes.

    Raises:
        ShardingError: the model cannot be scored in shards on this machine.
    """
    load_exported_task(model)  # verifies the weights
    shards.require()
    with TemporaryDirectory(prefix="perennial-losses-") as folder:
        scratch = Path(folder)
        snapshot.write(scratch / "snapshot")
        request = Request(
            processes=shards.number,
            sharded=True,
            model=str(model),
            snapshot=str(scratch / "snapshot"),
            windows=tuple(windows),
        )
        ((text,),) = shards.score(MODULE, request, 1, scratch / "processes")
    return Losses.from_json(text).losses


def main() -> int:
    """Score the rows of the request's windows; returns the exit code."""
    return score_share(Request, _scores)


def _scores(request: Request, share: Share, folder: Path) -> Iterator[Losses]:
    snapshot = Snapshot.read(Path(request.snapshot))
    rows = scan_blocks(snapshot, request.windows)
    with carried_modules(Path(request.model) / CODE_FOLDER):
        task, model = load_shared(Path(request.model), share)
        yield Losses(losses=window_losses(task, model, rows, snapshot, request.windows))
