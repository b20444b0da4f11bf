"""Encoded data: fits the task once, encodes each split once per machine, gathers rows."""

import fcntl
import logging
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from pydantic import JsonValue

from perennial.contracts.artifact import write_atomically
from perennial.contracts.data import Split
from perennial.contracts.errors import BadDataError, BadTaskError
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.data.batching import Indices
from perennial.engine.handover import load_decision, save_decision
from perennial.engine.job import FittedTask, TrainingJob
from perennial.engine.task import LABEL, WEIGHT, Batch, Task
from perennial.engine.world.distributed import World, machine_of_this_process

ENCODE_ROWS = 16_384  # bounds memory while encoding; larger chunks were no faster
DIGEST = "DIGEST"
LOG_SECONDS = 60.0  # between two progress lines
# Practically no limit: a large set takes hours. A process that ends closes its connections, which
# those that wait for it notice at once.
PATIENCE = timedelta(days=30)
logger = logging.getLogger(__name__)


def prepare_data(job: TrainingJob, world: World, task: Task, snapshot: Snapshot) -> None:
    """Fit the task on the training split, once, and encode the splits, once per machine."""
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    dataset = Dataset(snapshot) if world.local_rank == 0 else None
    fitted = None
    with alone(job) if dataset is not None else nullcontext():
        if world.is_first and dataset is not None:
            fitted = fitted_state(job, task, partial(dataset.scan, Split.TRAIN))
        state = world.from_first(fitted, group)
        # All ranks continue alike with the fitted or the loaded state.
        task.load_state(state)
        if dataset is not None:
            # The fingerprint, or the key of what is shared, and the fitted state determine it.
            digest = FittedTask(fingerprint=identity_of(job), state=state).digest()
            for split in (Split.TRAIN, Split.VALIDATION):
                encode_split(task, dataset, split, encoded(job, split), digest)
    dist.barrier(group=group)


def identity_of(job: TrainingJob) -> str:
    """Return what determines the encoded rows beside the fitted state: task, options and code."""
    return Path(job.shared).name if job.shared else job.fingerprint


@contextmanager
def alone(job: TrainingJob) -> Iterator[None]:
    """Wait until no other training writes what is shared; a lock that its process's end drops."""
    if not job.shared:
        yield
        return
    folder = Path(job.shared)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def encoded(job: TrainingJob, split: Split) -> Path:
    """Return this machine's folder of an encoded split."""
    return machine_folder(job) / split


def machine_folder(job: TrainingJob) -> Path:
    """Return this machine's folder of encoded rows; the job's folder may be shared."""
    if job.shared:
        return Path(job.shared)
    return job.scratch / f"machine-{machine_of_this_process()}"


def fitted_state(
    job: TrainingJob, task: Task, train: Callable[[], pl.LazyFrame]
) -> dict[str, JsonValue]:
    """Fit the task on the training split, or load the state that was fitted before.

    By an earlier attempt, or by another training with which it is shared.
    """
    fitted = load_decision(job, FittedTask)
    if fitted is not None:
        return fitted.state
    if job.shared and (Path(job.shared) / FittedTask.file_name).exists():
        state = FittedTask.read(Path(job.shared)).state
    else:
        logger.info("fitting=%s", type(task).__name__)
        task.fit(train())
        state = task.state()
        if job.shared:
            FittedTask(fingerprint=identity_of(job), state=state).write(Path(job.shared))
    fitted = FittedTask(fingerprint=job.fingerprint, state=state)
    save_decision(job, fitted)
    return fitted.state


class EncodedRows(ABC):
    """The encoded rows of a split, by their index in file order."""

    rows: int
    """Number of rows of the split."""
    weights: NDArray[Any] | None
    """Weight of each row, shape [rows]; None where all are equal, or not known beforehand."""
    answers: NDArray[np.float32] | None = None
    """What teachers predict for each row, shape [rows] or [rows, C]; None without distillation."""

    @abstractmethod
    def gather(self, rows: Indices) -> Batch:
        """Return the examples at these indices, as new tensors."""


class EncodedSplit(EncodedRows):
    """The encoded rows of a split (memory-mapped) or of a sample (in memory).

    A source folder has one `.npy` file per tensor of the task's batch.
    """

    def __init__(self, source: Path | Batch) -> None:
        if isinstance(source, Path):
            files = sorted(source.glob("*.npy"))
            # Plain views: gathering through the memmap subclass costs several times as much.
            self._arrays = {file.stem: np.asarray(np.load(file, mmap_mode="r")) for file in files}
        else:
            self._arrays = {name: tensor.numpy() for name, tensor in source.items()}
        self.rows = len(self._arrays[LABEL])
        self.weights = self._arrays.get(WEIGHT)

    def gather(self, rows: Indices) -> Batch:
        """Return the examples at these indices, as new tensors."""
        return {
            name: torch.from_numpy(np.take(array, rows, axis=0))
            for name, array in self._arrays.items()
        }


def encode_split(task: Task, dataset: Dataset, split: Split, folder: Path, digest: str) -> None:
    """Encode every row of a split, chunk by chunk; the folder is created atomically.

    Raises:
        BadDataError: the split is empty or has other rows than the snapshot states.
        BadTaskError: the task's `encode` breaks its contract.
    """
    if (folder / DIGEST).is_file() and (folder / DIGEST).read_text() == digest:
        logger.info("split=%s is encoded already", split)
        return
    shutil.rmtree(folder, ignore_errors=True)
    expected = dataset.snapshot.split_rows[split]
    if not expected:
        raise empty_split(dataset.snapshot, split)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    written, logged_at = 0, time.monotonic()
    arrays: dict[str, np.memmap[Any, np.dtype[Any]]] = {}
    for rows in dataset.batches(split, ENCODE_ROWS):
        batch = checked(task.encode(rows), rows.height, task)
        if not arrays:
            arrays = {
                name: _create(partial, name, value, expected) for name, value in batch.items()
            }
        if written + rows.height > expected:
            raise changed_split(split, f"more than {expected}", expected)
        for name in {**arrays, **batch}:
            _store(arrays, name, written, batch, task)
        written += rows.height
        if time.monotonic() - logged_at > LOG_SECONDS:
            logged_at = time.monotonic()
            logger.info("encoding=%s rows=%d of %d", split, written, expected)
    if written != expected:
        raise changed_split(split, str(written), expected)
    for array in arrays.values():
        array.flush()  # later attempts rely on it, maybe after a power failure
    del arrays
    write_atomically(partial / DIGEST, digest.encode())
    partial.replace(folder)


def checked(batch: Batch, rows: int, task: Task) -> Batch:
    """Return what `encode` made of a number of rows.

    Raises:
        BadTaskError: it is not one example per row, with a label.
    """
    lengths = {name: len(tensor) for name, tensor in batch.items()}
    if LABEL not in batch or set(lengths.values()) != {rows}:
        raise BadTaskError(
            f"{type(task).__name__}.encode must give one example per row, with `{LABEL}`",
            evidence=f"{rows} rows became tensors of length {lengths}",
            action="keep rows that cannot be encoded as well, or drop them from the data set",
        )
    return batch


def joined(batches: Sequence[Batch], task: Task, place: str) -> Batch:
    """Return the examples of several batches of the rows at a place, one after the other.

    Raises:
        BadTaskError: their tensors have other names, types (which `torch.cat` converts) or shapes.
    """
    for name in dict.fromkeys(name for batch in batches for name in batch):
        forms = dict.fromkeys(
            _form(batch[name].numpy() if name in batch else None) for batch in batches
        )
        if len(forms) > 1:
            raise BadTaskError(
                f"{type(task).__name__}.encode changes the shape or type of {name!r} between "
                "batches",
                evidence=f"{' and '.join(forms)}, in {place}",
                action="pad or cut to one size: shapes may not depend on the other rows",
            )
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def _create(
    folder: Path, name: str, tensor: torch.Tensor, rows: int
) -> np.memmap[Any, np.dtype[Any]]:
    example = tensor.numpy()
    return np.lib.format.open_memmap(
        folder / f"{name}.npy", mode="w+", dtype=example.dtype, shape=(rows, *example.shape[1:])
    )


def _store(
    arrays: Mapping[str, NDArray[np.generic]], name: str, start: int, batch: Batch, task: Task
) -> None:
    array, value = arrays.get(name), batch[name].numpy() if name in batch else None
    if array is None or value is None or _form(value) != _form(array):
        raise BadTaskError(
            f"{type(task).__name__}.encode changes the shape or type of {name!r} between batches",
            evidence=f"first {_form(array)}, then {_form(value)}",
            action="pad or cut to one size: shapes may not depend on the other rows",
        )
    array[start : start + len(value)] = value


def _form(array: NDArray[np.generic] | None) -> str:
    return "absent" if array is None else f"{array.dtype}{list(array.shape[1:])}"


def empty_split(snapshot: Snapshot, split: Split) -> BadDataError:
    """Return the error for a split without rows."""
    return BadDataError(
        f"the {split} split is empty",
        evidence=f"the snapshot has {snapshot.rows} rows",
        action="check [split] and the range of the data's times",
    )


def changed_split(split: Split, found: str, expected: int) -> BadDataError:
    """Return the error for a split whose rows were added or removed after the snapshot."""
    return BadDataError(
        f"the {split} split does not have the rows that the snapshot counted",
        evidence=f"expected {expected}, found {found}",
        action="take a new snapshot; partitions of the data set must never be rewritten",
    )
