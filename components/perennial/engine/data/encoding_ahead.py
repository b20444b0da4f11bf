"""Encoding ahead: fills the store with encoded blocks, through the executor, before a training.

The machines with GPUs then read tensors; the work is done by processes of the step's machine, or by
the Dask cluster of the profile.
"""

import logging
import tempfile
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.data.executor import open_executor
from perennial.data.row_groups import RowGroupReader, select_groups
from perennial.engine.data.block_cache import ShardStore
from perennial.engine.data.block_workers import EncoderRecipe
from perennial.engine.data.blocks import RowBlock, join_groups
from perennial.engine.data.preparation import (
    encoding_identity,
    find_indexes,
    fit_streamed,
    record_caches,
)
from perennial.engine.job import TrainingJob
from perennial.engine.task import Task, load_task

logger = logging.getLogger(__name__)


def encode_ahead(job: TrainingJob) -> int:
    """Encode the blocks of the training split that the store lacks; return how many these were.

    The task is fitted before, and the training takes that state.

    Raises:
        BadDataError: a partition is damaged or was rewritten.
        BadTaskError: the task's `fit` or `encode` fails.
    """
    snapshot = Snapshot.read(Path(job.snapshot))
    task = load_task(job.model.task, job.model.options, snapshot.task_columns)
    indexes = find_indexes(job, snapshot)
    state = fit_streamed(job, task, RowGroupReader(snapshot), indexes)
    task.load_state(state)
    recipe = EncoderRecipe(
        snapshot=snapshot,
        model=job.model,
        state=state,
        split=Split.TRAIN,
        cache=(job.scratch / "ahead", 0),
        identity=encoding_identity(job, state),
        shards=job.common_uri,
    )
    record_caches(job, snapshot, recipe.identity)
    encoder = recipe.build(task)
    known = ShardStore(recipe.shards, recipe.identity).keys
    blocks = join_groups(select_groups(snapshot, indexes, Split.TRAIN))
    missing = [block for block in blocks if encoder.key(block) not in known]
    logger.info("encoding ahead %d of %d blocks, the others are there", len(missing), len(blocks))
    if missing:
        with open_executor(len(missing)) as executor:
            for done in as_completed(
                [executor.submit(encode_shard, recipe, block) for block in missing]
            ):
                done.result()
    return len(missing)


_tasks: dict[str, Task] = {}


def encode_shard(recipe: EncoderRecipe, block: RowBlock) -> None:
    """Encode one block and upload it; each process builds the task once."""
    with tempfile.TemporaryDirectory() as folder:
        own = replace(recipe, cache=(Path(folder), 0), shards="")
        encoder = own.build(_tasks.get(recipe.identity))
        _tasks[recipe.identity] = encoder.task
        encoder(block)
        key = encoder.key(block)
        ShardStore(recipe.shards, recipe.identity).add(key, encoder.cache.path(key))
