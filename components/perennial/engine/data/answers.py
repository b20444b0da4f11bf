"""Answers: what the teachers predict for each training row, computed once and kept in the store.

All processes, attempts and layouts of a training read the same numbers, so it resumes bit for bit
whatever it runs on; and a step costs nothing more than the loss.
"""

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from pydantic import JsonValue

from perennial.clients.object_store import ObjectStore, open_store
from perennial.contracts.data import Split
from perennial.contracts.environment import data_cache
from perennial.contracts.errors import BadDataError, DamagedModelError
from perennial.contracts.initial_model import Teachers
from perennial.contracts.section import digest_of
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.data.row_groups import RowGroupReader, select_groups
from perennial.engine.config.distillation import Distillation
from perennial.engine.data.block_cache import DamagedBlockError, load_block, save_block
from perennial.engine.data.encoded import ENCODE_ROWS, PATIENCE, changed_split
from perennial.engine.data.preparation import find_indexes
from perennial.engine.data.stored_caches import record_use
from perennial.engine.job import TrainingJob
from perennial.engine.task import ANSWERS, Task
from perennial.engine.teachers import load_teachers, mean_answer, require_learnable, rows_to_match
from perennial.engine.world.distributed import World

LOG_SECONDS = 60.0
Rows = Callable[[], Iterator[pl.DataFrame]]
logger = logging.getLogger(__name__)


def prepare_answers(
    job: TrainingJob, world: World, task: Task, snapshot: Snapshot, *, streamed: bool
) -> NDArray[np.float32]:
    """Return the mean answer for each row of the training split, in file order.

    The first rank computes what the store lacks; every rank calls this together.

    Raises:
        BadTaskError: a teacher does not fit.
        DamagedModelError: a teacher, or what the store has, is damaged.
    """
    distillation, teachers = job.training.distillation, job.teachers
    if distillation is None or teachers is None:
        raise RuntimeError("only a training with teachers has answers")
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    store, key = open_store(job.common_uri), _key(job, task, snapshot)
    if world.is_first:
        # Recorded before it is looked for: another training could delete it as expired in between.
        record_use(store, [key])
        if not _is_intact(store, key):
            require_learnable(task, distillation, teachers, snapshot)
            rows: Rows = partial(Dataset(snapshot).batches, Split.TRAIN, ENCODE_ROWS)
            if streamed:
                rows = _row_groups(job, snapshot)
            job.scratch.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=job.scratch) as folder:
                count = snapshot.split_rows[Split.TRAIN]
                found = _compute(teachers, distillation, task, rows, (count, world.device, folder))
                save_block(Path(folder) / "whole", {ANSWERS: torch.from_numpy(found)})
                store.upload(key, Path(folder) / "whole")
    dist.barrier(group=group)
    try:
        return load_block(store.fetch(key, data_cache()))[ANSWERS].numpy()
    except DamagedBlockError as error:
        raise DamagedModelError(
            f"the answers of the teachers in {store.uri}/{key} are damaged",
            evidence=str(error),
            action="start the training again: it computes them again",
        ) from error


def _key(job: TrainingJob, task: Task, snapshot: Snapshot) -> str:
    """Return the place of the answers: a digest of all that determines them."""
    teachers, distillation = job.teachers, job.training.distillation
    parts: list[JsonValue] = [
        snapshot.digest(),
        # Without a contract, as in a test, the training's own.
        job.contract.get("code", job.fingerprint),
        teachers.identity() if teachers else None,
        distillation.softening if distillation else None,
        [task.kind, list(task.prediction_names)],
        # A regression may standardise its label by what it has fitted.
        task.state() if task.kind == "regression" else None,
    ]
    return f"answers/{digest_of(parts)}.safetensors"


def _is_intact(store: ObjectStore, key: str) -> bool:
    try:
        store.find(key)
        load_block(store.fetch(key, data_cache()))
    except BadDataError:
        return False
    except DamagedBlockError as error:
        logger.warning("the answers in %s are computed again: %s", key, error)
        return False
    return True


def _row_groups(job: TrainingJob, snapshot: Snapshot) -> Rows:
    groups = select_groups(snapshot, find_indexes(job, snapshot), Split.TRAIN)
    reader = RowGroupReader(snapshot)
    return lambda: (
        part
        for group in groups
        for rows in reader.read([group], Split.TRAIN)
        for part in rows.iter_slices(ENCODE_ROWS)
    )


def _compute(
    teachers: Teachers,
    distillation: Distillation,
    task: Task,
    rows: Rows,
    place: tuple[int, torch.device, str],
) -> NDArray[np.float32]:
    """Compute the answers into a file, chunk by chunk; memory holds one chunk."""
    expected, device, folder = place
    matched = rows_to_match(rows(), task.columns.label)
    loaded = load_teachers(teachers.members, task, matched, device)
    found: NDArray[np.float32] = np.empty(0, np.float32)
    start, began, logged_at = 0, time.monotonic(), time.monotonic()
    for chunk in rows():
        answer = mean_answer(loaded, chunk, distillation.softening)
        if not start:
            shape = (expected, *answer.shape[1:])
            file = Path(folder) / "answers.npy"
            found = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
        found[start : start + len(answer)] = answer
        start += len(answer)
        if time.monotonic() - logged_at > LOG_SECONDS:
            logged_at = time.monotonic()
            logger.info("answers=%d of %d", start, expected)
    if start != expected:
        raise changed_split(Split.TRAIN, str(start), expected)
    logger.info("teachers=%d answers=%d seconds=%.1f", len(loaded), start, time.monotonic() - began)
    return found
