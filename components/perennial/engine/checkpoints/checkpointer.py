"""Checkpointer: saves the whole training state from all ranks, and loads it into any sharding.

The state is the weights, the optimizer's moments and the step. Data order, learning rate and random
numbers are functions of (seed, rank, step), so a resumed training is bit-identical.
"""

import logging
import math
import shutil
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.contracts.training import (
    CheckpointRecord,
    Direction,
    KeptAs,
    TrainedPart,
    TrainingResult,
    both_names,
)
from perennial.engine.adapters import base_names, build_adapted_model
from perennial.engine.checkpoints.checkpoint_store import (
    CheckpointStore,
    fetch_checkpoint,
    measured,
    newest_intact,
    open_checkpoint_store,
)
from perennial.engine.checkpoints.folder import (
    CheckpointManifest,
    Progress,
    checkpoint_path,
    partial_path,
)
from perennial.engine.checkpoints.reading import (
    CheckpointReader,
    holds,
    leave_out_absent,
    load_state,
)
from perennial.engine.checkpoints.writing import CheckpointWriter, not_written
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import TrainingJob
from perennial.engine.optimization.averaging import AveragedWeights, averages_to_load
from perennial.engine.parallelism.parallelize import with_absent_states
from perennial.engine.parallelism.sharded_loading import build_sharded, build_sharded_adapted
from perennial.engine.task import Task, load_task
from perennial.engine.world.distributed import World

# Uploading a large state may take long; the loop does not wait for it.
WRITE_TIMEOUT = timedelta(hours=6)
State: TypeAlias = dict[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retention:
    """Retention policy: the best by a metric, the last, and those at regular steps.

    Attributes:
        keep_every_steps: Multiples of it are kept too; None for none.
        metric: Metric by which they are compared; the better value of the weights and of their
            moving average's (`averaged_…`), where there is one.
    """

    keep_best: int
    keep_every_steps: int | None
    metric: str
    direction: Direction

    def choose(self, measured: Mapping[int, Mapping[str, float]]) -> dict[int, KeptAs]:
        """Return step → reason why it is kept; earlier steps win ties.

        A checkpoint whose metric is missing or not finite is not among the best.
        """
        sign = 1.0 if self.direction == "minimize" else -1.0
        names = both_names(self.metric)
        figures = {
            step: [sign * metrics[name] for name in names if name in metrics]
            for step, metrics in measured.items()
        }
        finite = {step: list(filter(math.isfinite, each)) for step, each in figures.items()}
        scored = sorted((min(each), step) for step, each in finite.items() if each)
        best = {step for _, step in scored[: self.keep_best]}
        last = max(measured, default=None)
        every = self.keep_every_steps
        kept: dict[int, KeptAs] = {}
        for step in sorted(measured):
            reasons: KeptAs = ("best",) if step in best else ()
            reasons += ("interval",) if every and step % every == 0 else ()
            reasons += ("last",) if step == last else ()
            if reasons:
                kept[step] = reasons
        return kept


class Checkpointer:
    """Saves, restores and retires the checkpoints of one training.

    Every method except `records` is called by all ranks together. At most one save is in flight:
    the next one waits for it; call `wait` before the training ends.

    Args:
        section: The job's, with `auto` replaced by a layout.
        averaged: Moving average, saved and restored with the weights; None without one.
    """

    def __init__(
        self,
        job: TrainingJob,
        metric: tuple[str, Direction],
        world: World,
        section: TrainingSection,
        averaged: AveragedWeights | None = None,
    ) -> None:
        settings = section.checkpoints
        self._job = job
        self._section = section
        self._world = world
        self._averaged = averaged
        self._retention = Retention(settings.keep_best, settings.keep_every_steps, *metric)
        self._store = open_checkpoint_store(job.checkpoints_uri)
        self._measured: dict[int, dict[str, float]] = {}
        # Those of `_measured` that a shorter training has kept, which are not this one's to delete.
        self._inherited: dict[int, CheckpointStore] = {}
        self._part = world.describe_part(section)
        self.parts: tuple[TrainedPart, ...] = (self._part,)
        """How the work was divided, in order."""
        # The loop's own group would mix the writer's messages with the gradients'.
        self._group = dist.new_group(backend="gloo", timeout=WRITE_TIMEOUT)
        # PyTorch's stager cannot copy the quantised moments of torchao.
        can_stage = section.optimizer.name != "adamw8bit"
        self._is_asynchronous = settings.asynchronous and can_stage
        is_gpu = world.device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=is_gpu,
                use_shared_memory=False,
                # The copy is complete when `save` returns: the loop then changes the weights.
                use_async_staging=False,
                use_non_blocking_copy=is_gpu,
            )
        )
        self._in_flight: tuple[int, Future[Any]] | None = None

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Load the newest intact checkpoint, if there is one, and return its progress."""
        self.wait()
        found: tuple[CheckpointManifest | None, str] = (None, "")
        if self._world.is_first:
            self._store.discard_uncommitted()
            found = self._find_newest()
            self._list_kept()
        manifest, uri = self._world.from_first(found)
        self._prune_copies()
        if manifest is None:
            return Progress()
        store = open_checkpoint_store(uri)
        path = checkpoint_path(store.folder, manifest.step)
        if not self._world.is_first and self._world.local_rank == 0:
            # Another machine: what it reads is checked there.
            store.fetch_verified(manifest.step)
        # The other ranks of a machine read the files that its first rank downloads and verifies.
        self._world.barrier()
        # A stage begins with a new optimizer, whether or not the training was interrupted there.
        is_begun = manifest.step > self._section.stage_at(manifest.step).start
        has_moments = is_begun and holds(path, "optimizer")
        state = self._state(model, optimizer, has_moments=has_moments)
        leave_out_absent(state, path)
        with _hidden_warnings():
            load_state(state, path)
        _load_into(model, optimizer, state)
        self._note_parts(manifest)
        logger.info("resumed_from=%s step=%d", store.uri_of(manifest.step), manifest.step)
        resumes = manifest.progress.num_resumes + 1
        return manifest.progress.model_copy(update={"num_resumes": resumes})

    def _find_newest(self) -> tuple[CheckpointManifest | None, str]:
        """Return the checkpoint to resume from, and its store's address.

        Without one, that of the longest shorter training that this one extends.
        """
        job = self._job
        found = newest_intact(self._store, job.fingerprint, job.contract)
        if found is not None:
            return found, job.checkpoints_uri
        for shorter in job.extended:
            store = open_checkpoint_store(shorter.checkpoints_uri)
            found = newest_intact(store, shorter.fingerprint, job.contract)
            if found is not None:
                logger.info("extends the training of %d steps", shorter.steps)
                return found, shorter.checkpoints_uri
        return None, ""

    def _list_kept(self) -> None:
        """List the checkpoints that may be kept, also those of the trainings that this extends."""
        self._measured, self._inherited = measured(self._store), {}
        for shorter in self._job.extended:
            store = open_checkpoint_store(shorter.checkpoints_uri)
            for step, metrics in measured(store).items():
                if step not in self._measured:
                    self._measured[step], self._inherited[step] = metrics, store

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        metrics: dict[str, float],
    ) -> None:
        """Start a checkpoint; it is written while training continues.

        Raises:
            CheckpointNotWrittenError: the one before could not be written.
        """
        self.wait()
        start = time.monotonic()
        has_moments = any(optimizer.state.values())
        state = self._state(model, optimizer, has_moments=has_moments)
        manifest = CheckpointManifest(
            fingerprint=self._job.fingerprint,
            contract=self._job.contract,
            step=progress.step,
            metrics=metrics,
            files={},
            progress=progress.model_copy(update={"parts": self.parts}),
        )
        writer = CheckpointWriter(self._store, manifest, lambda: self._note_commit(manifest))
        with _hidden_warnings():
            self._in_flight = progress.step, self._write(state, writer)
        logger.info("checkpoint=%d taken_seconds=%.4f", progress.step, time.monotonic() - start)
        if not self._is_asynchronous:
            self.wait()

    def _state(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, has_moments: bool
    ) -> State:
        """Return what a checkpoint holds; of a training with an adapter, not its base."""
        if has_moments:
            weights, moments = get_state_dict(model, optimizer)
            # Without the settings of the optimizer's groups: the contract and the step tell them,
            # and how weights are grouped depends on how they are sharded.
            state: State = {"model": weights, "optimizer": {"state": moments["state"]}}
        else:
            # Before the first update that was applied. The library would make one of rate 0 to have
            # moments, which counts as an update in the training that goes on.
            state = {"model": get_model_state_dict(model)}
        for name in base_names(model, self._section.adapter):
            del state["model"][name]
        # Loaded in place: what is put here is the average itself.
        return state | ({"averaged": self._averaged.state_dict()} if self._averaged else {})

    def _write(self, state: State, writer: CheckpointWriter) -> Future[Any]:
        """Start to write a copy of the state, or write the state itself."""
        if self._is_asynchronous:
            started = async_save(
                state, storage_writer=writer, process_group=self._group, async_stager=self._stager
            )
            return cast("Future[Any]", started)  # the other type is that of staging in a thread
        written: Future[Any] = Future()
        try:
            written.set_result(save(state, storage_writer=writer, process_group=self._group))
        except CheckpointException as error:
            written.set_exception(error)
        return written

    def wait(self) -> None:
        """Wait until no checkpoint is being written.

        Raises:
            CheckpointNotWrittenError: the last one could not be written.
        """
        if self._in_flight is None:
            return
        (step, written), self._in_flight = self._in_flight, None
        try:
            written.result()
        except CheckpointException as error:
            failure = not_written(step, error)
            raise failure from failure.__cause__
        finally:
            if self._world.local_rank == 0:
                # Of a failed save, or of a machine whose files are in the store by now.
                shutil.rmtree(partial_path(self._store.folder, step), ignore_errors=True)

    def settle(self) -> None:
        """Finish the pending write after the training has failed."""
        try:
            self.wait()
        except Exception as error:  # the training's error is recorded already
            logger.warning("the last checkpoint was not written: %s", error)

    @property
    def is_writing(self) -> bool:
        """Whether this rank is still writing a checkpoint."""
        return self._in_flight is not None and not self._in_flight[1].done()

    def discard_from(self, step: int) -> None:
        """Delete the checkpoints of a step and of all later steps: their weights are corrupt."""
        self.wait()
        if self._world.is_first:
            # Also those that `_retire` could not delete and has forgotten. Here an error ends the
            # training: a corrupt checkpoint that stays would be restored.
            for corrupt in reversed(self._store.steps()):
                if corrupt >= step:
                    self._store.delete(corrupt)
                    self._measured.pop(corrupt, None)
        self._world.barrier()

    def close(self) -> None:
        """Delete all checkpoints except those in `records`; called after the training."""
        self.wait()
        if self._world.is_first:
            self._retire(self._retention.choose(self._measured))
        self._prune_copies()

    def records(self) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints that are kept, oldest first; complete on the first rank only."""
        self.wait()
        return tuple(
            CheckpointRecord(
                step=step,
                uri=self._inherited.get(step, self._store).uri_of(step),
                metrics=self._measured[step],
                kept_as=reasons,
            )
            for step, reasons in self._retention.choose(self._measured).items()
        )

    def _note_parts(self, manifest: CheckpointManifest) -> None:
        earlier = manifest.progress.parts
        part = self._part.model_copy(update={"from_step": manifest.step})
        if earlier and earlier[-1].division == part.division:
            self.parts = earlier
            return
        self.parts = (*earlier, part)
        if earlier:
            logger.warning(
                "resharded from %s to %s: sums are rounded in another order from now on",
                earlier[-1].division,
                part.division,
            )

    def _note_commit(self, manifest: CheckpointManifest) -> None:
        """Delete superfluous checkpoints; called on the first rank, by the thread that writes."""
        logger.info("checkpoint=%d committed", manifest.step)
        self._measured[manifest.step] = manifest.metrics
        self._inherited.pop(manifest.step, None)  # a step that was trained again is this one's
        # A jump of the loss is noticed some steps late: the newest may be corrupt by then, and the
        # one to return to is the one before. A rewind returns to evaluations: checkpoints that
        # signals have caused in between must not take their place.
        latest = [step for step in sorted(self._measured) if self._measured[step]][-2:]
        self._retire({*self._retention.choose(self._measured), *latest})

    def _prune_copies(self) -> None:
        steps = self._world.from_first(tuple(self._measured))
        if self._world.local_rank == 0:
            self._store.prune_copies(steps)

    def _retire(self, kept: Collection[int]) -> None:
        for step in self._measured.keys() - set(kept):
            try:
                if step not in self._inherited:
                    self._store.delete(step)
            except (OSError, PerennialError) as error:
                logger.warning(
                    "checkpoint=%s cannot be deleted: %s", self._store.uri_of(step), error
                )
            # Forgotten even if it is still there: the next attempt lists the store and tries again.
            del self._measured[step]


def newest_step(job: TrainingJob, world: World) -> int:
    """Return the step of the newest intact checkpoint; 0 without one. All ranks call it."""
    found = None
    if world.is_first:
        store = open_checkpoint_store(job.checkpoints_uri)
        found = newest_intact(store, job.fingerprint, job.contract)
    step: int = world.from_first(found.step if found else 0)
    return step


def load_checkpoint_models(
    checkpoint: Path | str, result: TrainingResult, world: World | None = None
) -> Iterator[tuple[bool, Task, nn.Module]]:
    """Yield the model of one checkpoint, then that of the moving average if it has one (True).

    It is sharded over `world`, if given; all of its processes call this.

    The bytes are read and verified once for both. Raises the errors of `load_checkpoint_model`.
    """
    folder = fetch_checkpoint(str(checkpoint))
    for averaged in (False, True)[: 1 + holds(folder, "averaged")]:
        yield averaged, *_load_model(folder, result, averaged, world)


def load_checkpoint_model(
    checkpoint: Path | str,
    result: TrainingResult,
    *,
    averaged: bool = False,
    world: World | None = None,
) -> tuple[Task, nn.Module]:
    """Return the full model of one checkpoint, in evaluation mode, or its shards over `world`.

    Raises:
        DamagedCheckpointError: its bytes are not those that were written.
        DamagedModelError: the base of its adapter is gone or altered.
        PerennialError: it has no averaged weights.
        BadTaskError: the task's model is not the one that was trained.
    """
    return _load_model(fetch_checkpoint(str(checkpoint)), result, averaged, world)


def _load_model(
    checkpoint: Path, result: TrainingResult, averaged: bool, world: World | None
) -> tuple[Task, nn.Module]:
    """Return the model from a folder whose bytes have been verified."""
    task = load_task(result.task, result.options, result.columns)
    task.load_state(result.task_state)
    adapter = result.adapter
    if adapter is not None and world is not None:
        model = build_sharded_adapted(task, result.initial, adapter, world)
    elif adapter is not None:
        model = build_adapted_model(task, result.initial, adapter)
    else:
        model = build_sharded(task, world) if world is not None else task.build_model()
    base = base_names(model, adapter)
    state = {"model": {name: v for name, v in model.state_dict().items() if name not in base}}
    stored = CheckpointReader(checkpoint).read_metadata().state_dict_metadata
    trained = {name.removeprefix("model.") for name in stored if name.startswith("model.")}
    if averaged:
        names = {name.removeprefix("averaged.") for name in stored if name.startswith("averaged.")}
        state["averaged"] = averages_to_load(state["model"], names)
        # Only what was trained has an average: statistics of frozen normalisations stay.
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
    try:
        if trained != set(state["model"]):
            # The library loads only what it is asked for: a model that lost a layer would load.
            raise RuntimeError(f"names differ: {sorted(trained ^ set(state['model']))[:5]}")
        with _hidden_warnings():
            load_state(state, checkpoint, no_dist=True)
        own = state["model"] | state.get("averaged", {})
        model.load_state_dict({**model.state_dict(), **own})
    except RuntimeError as error:
        raise BadTaskError(
            f"the weights in {checkpoint} do not fit the model of {result.task}",
            evidence=str(error).splitlines()[0],
            action="the task's code changed after the training; check out its commit",
        ) from error
    model.eval()
    return task, model


def _load_into(model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    # With the base of an adapter, which the model has already.
    weights = {**get_model_state_dict(model), **state["model"]}
    if "optimizer" not in state:
        set_model_state_dict(model, weights)
        optimizer.state.clear()
        return
    groups = cast(
        "list[dict[str, Any]]", get_optimizer_state_dict(model, optimizer)["param_groups"]
    )
    moments = {"state": with_absent_states(state["optimizer"]["state"], groups)}
    set_state_dict(
        model,
        optimizer,
        model_state_dict=weights,
        optim_state_dict={**moments, "param_groups": groups},
    )
    # The library wants a state for each weight, and the next checkpoint must not hold empty ones.
    for weight in [weight for weight, held in optimizer.state.items() if not held]:
        del optimizer.state[weight]


@contextmanager
def _hidden_warnings() -> Iterator[None]:
    """Hide the library's warnings about its own internals."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.distributed")
        yield
