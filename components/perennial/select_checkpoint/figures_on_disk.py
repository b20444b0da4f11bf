"""Figures on disk: per-row scores of weights, written batch by batch and read as views."""

import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from perennial.contracts.errors import BadDataError
from perennial.contracts.section import Section
from perennial.engine.evaluation.scoring import ScoredBatch

ARRAYS = ("losses", "predictions", "labels", "weights")


class Figures(Section):
    """Scores of weights on some rows: a file of float64 for each array of a `ScoredBatch`."""

    folder: str
    averaged: bool
    """Whether these are the moving average of the weights."""
    rows: int
    shapes: dict[str, tuple[int, ...]]
    """Shape of one row of each array; empty if there are no rows."""


class Found(Section):
    """Scores by one process of a checkpoint's weights, and of their moving average."""

    figures: tuple[Figures, ...]


def write_figures(batches: Iterable[ScoredBatch], folder: Path, *, averaged: bool) -> Figures:
    """Append each batch to the files; memory holds one batch."""
    folder.mkdir(parents=True)
    rows, shapes = 0, {}
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in ARRAYS}
        for batch in batches:
            for name, file in files.items():
                array = np.ascontiguousarray(getattr(batch, name), dtype=np.float64)
                array.tofile(file)
                shapes[name] = array.shape[1:]
            rows += len(batch.losses)
    return Figures(folder=str(folder), averaged=averaged, rows=rows, shapes=shapes)


def read_together(parts: Sequence[Figures]) -> ScoredBatch:
    """Return the scores of all processes, in order, as views of the first one's files.

    Raises:
        BadDataError: there are no rows.
    """
    rows = sum(part.rows for part in parts)
    if not rows:
        raise BadDataError(
            "the validation split has no rows, so no checkpoint can be scored",
            action="look at the snapshot's split_rows and the split section of the contract",
        )
    first = Path(parts[0].folder)
    for part in parts[1:]:
        for name in ARRAYS:
            with (first / name).open("ab") as whole, (Path(part.folder) / name).open("rb") as rest:
                shutil.copyfileobj(rest, whole)
        shutil.rmtree(part.folder)
    shapes = next(part.shapes for part in parts if part.rows)
    # Plain views: reading through the memmap subclass costs several times as much.
    return ScoredBatch(
        *(
            np.asarray(np.memmap(first / name, np.float64, "r", shape=(rows, *shapes[name])))
            for name in ARRAYS
        )
    )
