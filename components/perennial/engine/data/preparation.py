"""Preparation: chooses between resident and streamed rows, and makes either ready for training.

Streamed rows may be encoded ahead into the store, by processes of the step's machine, or by the
Dask cluster of the profile: the machines with GPUs then read tensors.
"""

import hashlib
import logging
import shutil
import socket
import tempfile
from collections.abc import Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
import torch.distributed as dist
from pydantic import JsonValue

from perennial.clients.object_store import ConflictError, complete_file, open_store
from perennial.contracts.data import Split
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import digest_of
from perennial.contracts.snapshot import Snapshot
from perennial.data.executor import open_executor
from perennial.data.row_groups import (
    PartitionIndex,
    RowGroupReader,
    SelectedGroup,
    index_partitions,
    index_prefix,
    select_groups,
)
from perennial.engine.data.batching import Indices, fixed_sample
from perennial.engine.data.block_cache import (
    DamagedBlockError,
    ShardStore,
    load_block,
    save_block,
    shards_prefix,
)
from perennial.engine.data.block_workers import BlockWorkers
from perennial.engine.data.blocks import BlockEncoder, EncoderRecipe, RowBlock, join_groups
from perennial.engine.data.encoded import (
    ENCODE_ROWS,
    PATIENCE,
    checked,
    empty_split,
    fitted_state,
    identity_of,
    joined,
    machine_folder,
)
from perennial.engine.data.stored_caches import record_use
from perennial.engine.data.streamed import SampledSplit, StreamedSplit
from perennial.engine.handover import load_decision, save_decision
from perennial.engine.job import Decision, FittedTask, TrainingJob
from perennial.engine.sources import sources_of
from perennial.engine.task import Batch, Task, load_task
from perennial.engine.world.distributed import World

GIB = 2**30
DISK_SHARE = 0.5
"""Share of the free disk that encoded splits may take: checkpoints and copies of remote partitions
are written beside them."""
EXPANSION = 100
"""Encoded bytes per byte of Parquet that no task of ours reaches: JPEG pictures as float32 become
about 40 times as large, tables 10 times."""
MEASURED_ROWS = 4_096
logger = logging.getLogger(__name__)


class LoadingPlan(Decision):
    """Whether rows are resident or streamed, and why; it decides the data order.

    File tree: `loading_plan.json`.
    """

    file_name: ClassVar[str] = "loading_plan.json"

    mode: Literal["resident", "streaming"]
    reason: str


def choose_mode(job: TrainingJob, world: World, snapshot: Snapshot) -> bool:
    """Return whether rows are streamed; every rank calls it together, and the choice is kept.

    Raises:
        BadDataError: a sample of the rows cannot be read.
    """
    plan = None
    if world.is_first:
        plan = load_decision(job, LoadingPlan)
        if plan is None:
            plan = _plan(job, snapshot)
            save_decision(job, plan)
    plan = world.from_first(plan, dist.new_group(backend="gloo", timeout=PATIENCE))
    logger.info("loading=%s: %s", plan.mode, plan.reason)
    return plan.mode == "streaming"


def _plan(job: TrainingJob, snapshot: Snapshot) -> LoadingPlan:
    mode = job.training.loading.mode
    reason = "training.loading.mode says so"
    if mode == "auto":
        limit = int(_free_bytes(job.root) * DISK_SHARE)
        needed, evidence = _encoded_bytes(job, snapshot, limit)
        mode = "resident" if needed <= limit else "streaming"
        reason = (
            f"{evidence}, and {limit / GIB:,.1f} GiB ({DISK_SHARE:.0%} of the free disk) may be "
            "used"
        )
    return LoadingPlan(fingerprint=job.fingerprint, mode=mode, reason=reason)


def _encoded_bytes(job: TrainingJob, snapshot: Snapshot, limit: int) -> tuple[int, str]:
    """Return the size of both encoded splits at most, and how it is known."""
    stored = sum(file.size_bytes for file in snapshot.files)
    # This fits whatever `encode` makes of the rows, so none has to be read.
    if stored * EXPANSION <= limit:
        return stored * EXPANSION, f"the partitions have {stored / GIB:,.3f} GiB"
    task = load_task(job.model.task, job.model.options, snapshot.task_columns)
    reader = RowGroupReader(snapshot)
    groups = select_groups(snapshot, find_indexes(job, snapshot), Split.TRAIN)
    chosen = _spaced(groups, MEASURED_ROWS)
    rows = pl.concat(reader.read(chosen, Split.TRAIN)).head(MEASURED_ROWS)
    task.fit(rows.lazy())  # of a task of its own: only the shapes matter
    batch = checked(task.encode(rows), rows.height, task)
    per_row = sum(tensor.nbytes for tensor in batch.values()) / max(rows.height, 1)
    count = snapshot.split_rows[Split.TRAIN] + snapshot.split_rows[Split.VALIDATION]
    needed = int(per_row * count)
    return needed, (
        f"{count:,} rows of {per_row:,.0f} bytes (measured on {rows.height:,}) are "
        f"{needed / GIB:,.1f} GiB when encoded"
    )


def _free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def find_indexes(job: TrainingJob, snapshot: Snapshot) -> list[PartitionIndex]:
    """Return what is known of each partition."""
    return index_partitions(snapshot, open_store(job.common_uri))


def stream_data(
    job: TrainingJob, world: World, task: Task, snapshot: Snapshot
) -> tuple[StreamedSplit, SampledSplit]:
    """Fit the task, and open the training split and the sample of validation rows.

    Raises:
        BadDataError: a split is empty, or a partition is damaged or was rewritten.
    """
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    reader = RowGroupReader(snapshot)
    fitted = None
    if world.is_first:
        indexes = find_indexes(job, snapshot)
        fitted = indexes, fit_streamed(job, task, reader, indexes)
    indexes, state = world.from_first(fitted, group)
    task.load_state(state)
    identity = encoding_identity(job, snapshot, state)
    if world.is_first:
        # Before blocks are fetched: another training could delete them as expired.
        record_caches(job, snapshot, identity)
    # Before the sample is encoded: processes that encode need seconds to start.
    train = _open_train(job, task, reader, indexes, identity)
    if world.local_rank == 0:
        _encode_sample(job, task, reader, indexes, identity)
    dist.barrier(group=group)
    batch, rows = load_block(_sample_file(job, identity)), snapshot.split_rows[Split.VALIDATION]
    return train, SampledSplit(batch, _sample(job, snapshot), rows)


def fit_streamed(
    job: TrainingJob, task: Task, reader: RowGroupReader, indexes: Sequence[PartitionIndex]
) -> dict[str, JsonValue]:
    """Return the fitted state: of an earlier attempt, of an equal fit, or of `fit_rows` rows.

    Equal fits share their state through the store, as sums over the same rows may differ in the
    last bit, and with it every encoded row.
    """
    store, key = open_store(job.common_uri), _fit_key(job, reader.snapshot)
    # A resumed attempt keeps its own state, whatever another training has stored since.
    content = store.read(key) if load_decision(job, FittedTask) is None else None
    if content is not None:
        state = FittedTask.from_json(content).state
        save_decision(job, FittedTask(fingerprint=job.fingerprint, state=state))
        return state
    groups = select_groups(reader.snapshot, indexes, Split.TRAIN)
    folder = _folder(job)
    folder.mkdir(parents=True, exist_ok=True)
    # Of its own: trials of a study fit in the same folder at the same time.
    with tempfile.TemporaryDirectory("", "fitting-", folder, ignore_cleanup_errors=True) as copies:
        # Not from the folder that trials share: a trial may have fitted there on other rows.
        alone = job.model_copy(update={"shared": ""})
        state = fitted_state(alone, task, lambda: _fitting_rows(job, reader, groups, Path(copies)))
    with suppress(ConflictError):  # another training was first; this one keeps its own
        fitted = FittedTask(fingerprint=key, state=state)
        store.replace(key, fitted.to_json().encode(), previous=None)
    return state


def record_caches(job: TrainingJob, snapshot: Snapshot, identity: str) -> None:
    """Record that this training uses what it keeps in the store."""
    used = [index_prefix(snapshot), _fit_key(job, snapshot)]
    if job.training.loading.encode_ahead:
        used.append(shards_prefix(identity))
    record_use(open_store(job.common_uri), used)


def _fit_key(job: TrainingJob, snapshot: Snapshot) -> str:
    """Return the name of what determines the fitted state."""
    parts = [snapshot.digest(), _code_of(job), job.training.loading.fit_rows]
    return f"fitted/{digest_of(parts)}.json"


def _code_of(job: TrainingJob) -> JsonValue:
    """Return task, options and code; without a contract, the training alone."""
    if "code" not in job.contract:
        return identity_of(job)
    return [job.contract["code"], job.model.model_dump(mode="json", exclude={"name"})]


def encoding_identity(job: TrainingJob, snapshot: Snapshot, state: dict[str, JsonValue]) -> str:
    """Return the digest of all that determines encoded rows beside the partitions' bytes."""
    # A task without fitted state would not show that the contract names other columns or splits
    # otherwise. Windows select whole days, which the numbers of rows in a block's key follow.
    rule = snapshot.split.model_copy(update={"train_days": None, "test_days": None})
    data, columns = snapshot.data, snapshot.task_columns
    split: JsonValue = [rule.model_dump(mode="json"), data.time, data.group, list(data.ids)]
    parts = [_code_of(job), state, columns.model_dump(mode="json"), split]
    return digest_of(parts)


def _open_train(
    job: TrainingJob,
    task: Task,
    reader: RowGroupReader,
    indexes: Sequence[PartitionIndex],
    identity: str,
) -> StreamedSplit:
    loading = job.training.loading
    blocks = join_groups(select_groups(reader.snapshot, indexes, Split.TRAIN))
    if not blocks:
        raise empty_split(reader.snapshot, Split.TRAIN)
    recipe = EncoderRecipe(
        snapshot=reader.snapshot,
        model=job.model,
        state=task.state(),
        split=Split.TRAIN,
        cache=(_folder(job) / "blocks", int(loading.cache_gib * GIB)),
        identity=identity,
        shards=job.common_uri if loading.encode_ahead else "",
    )
    encoder = BlockEncoder(recipe, task)
    workers = BlockWorkers(recipe, loading.encode_workers) if loading.encode_workers else None
    return StreamedSplit(blocks, encoder, workers)


def _fitting_rows(
    job: TrainingJob, reader: RowGroupReader, groups: Sequence[SelectedGroup], folder: Path
) -> pl.LazyFrame:
    """Return a query of about `fit_rows` rows of the training split, in file order.

    Copies of remote row groups are written to the folder.
    """
    used = [each for each in groups if each.selected]
    chosen = _spaced(used, job.training.loading.fit_rows)
    rows = sum(each.selected for each in chosen)
    total = sum(each.selected for each in used)
    logger.info(
        "fitting on %s of %s rows, in %d of %d row groups", f"{rows:,}", f"{total:,}",
        len(chosen), len(used),
    )  # fmt: skip
    return reader.scan(chosen, Split.TRAIN, folder)


def _spaced(groups: Sequence[SelectedGroup], rows: int | None) -> list[SelectedGroup]:
    """Return evenly spaced row groups with at least so many rows together, in file order."""
    used = [each for each in groups if each.selected]
    total = sum(each.selected for each in used)
    if rows is None or total <= rows:
        return list(used)
    # So many of the mean size; those that are chosen may be smaller, and then more are tried.
    count = min(len(used), -(-rows * len(used) // total))
    while True:
        places = (np.arange(count) + 0.5) * len(used) / count
        chosen = [used[int(place)] for place in places]
        if count == len(used) or sum(each.selected for each in chosen) >= rows:
            return chosen
        count += 1


def _sample_file(job: TrainingJob, identity: str) -> Path:
    training = job.training
    name = f"validation-{identity[:16]}-{training.evaluation_rows}-{training.seed}.safetensors"
    return _folder(job) / name


def _encode_sample(
    job: TrainingJob,
    task: Task,
    reader: RowGroupReader,
    indexes: Sequence[PartitionIndex],
    identity: str,
) -> None:
    """Encode the validation rows that evaluations score, once per machine."""
    target = _sample_file(job, identity)
    # One that a loss of power cut short would end every later attempt.
    with suppress(FileNotFoundError, DamagedBlockError):
        load_block(target)
        return
    snapshot = reader.snapshot
    groups = [each for each in select_groups(snapshot, indexes, Split.VALIDATION) if each.selected]
    if not groups:
        raise empty_split(snapshot, Split.VALIDATION)
    sample = _sample(job, snapshot)
    starts = np.cumsum([0, *(each.selected for each in groups)])
    parts: list[Batch] = []
    for each, first, last in zip(groups, starts, starts[1:], strict=False):
        mine = sample[np.searchsorted(sample, first) : np.searchsorted(sample, last)] - first
        if len(mine):
            (rows,) = reader.read([each], Split.VALIDATION)
            for chunk in rows[mine].iter_slices(ENCODE_ROWS):
                parts.append(checked(task.encode(chunk), chunk.height, task))
    batch = joined(parts, task, "the sample of validation rows")
    with complete_file(target) as partial:
        save_block(partial, batch)


def _sample(job: TrainingJob, snapshot: Snapshot) -> Indices:
    rows = snapshot.split_rows[Split.VALIDATION]
    return fixed_sample(rows, job.training.evaluation_rows, job.training.seed)


def _folder(job: TrainingJob) -> Path:
    return machine_folder(job) / "streamed"


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
        identity=encoding_identity(job, snapshot, state),
        shards=job.common_uri,
        sources=_digest_sources(task),
    )
    record_caches(job, snapshot, recipe.identity)
    encoder = BlockEncoder(recipe, task)
    known = ShardStore(recipe.shards, recipe.identity).keys
    blocks = join_groups(select_groups(snapshot, indexes, Split.TRAIN))
    missing = [block for block in blocks if encoder.key(block) not in known]
    logger.info("encoding ahead %d of %d blocks, the others are there", len(missing), len(blocks))
    if missing:
        with open_executor(len(missing), packages=("torch",)) as executor:
            for done in as_completed(
                [executor.submit(encode_shard, recipe, block) for block in missing]
            ):
                done.result()
    return len(missing)


_tasks: dict[str, Task] = {}


def encode_shard(recipe: EncoderRecipe, block: RowBlock) -> None:
    """Encode one block and upload it; each process builds the task once.

    Raises:
        PerennialError: this machine has other sources of the task than the training's.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Without shards, because the block is made here; a limit of 0 keeps the newest block alone.
        own = replace(recipe, cache=(Path(folder), 0), shards="")
        known = _tasks.get(recipe.identity)
        encoder = BlockEncoder(own, known)
        if known is None and recipe.sources not in ("", _digest_sources(encoder.task)):
            raise PerennialError(
                "a worker that encodes rows has other sources of the task than the training",
                evidence=f"{type(encoder.task).__module__}, or a module that it imports, on "
                f"{socket.gethostname()}",
                action="deploy the Dask workers with an image that holds the training's task",
            )
        _tasks[recipe.identity] = encoder.task
        encoder(block)
        key = encoder.key(block)
        ShardStore(recipe.shards, recipe.identity).add(key, encoder.cache.path(key))


def _digest_sources(task: Task) -> str:
    """Return the digest of the task's sources: its module and what it imports, but packages."""
    found = hashlib.sha256()
    for name, file in sources_of(each.__module__ for each in type(task).__mro__).files.items():
        found.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()
