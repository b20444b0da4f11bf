"""Checkpoint: the whole training state, saved by all ranks at once and loaded into any sharding.

State are the weights, the optimizer's moments and the step. Data order, learning rate and random
numbers are functions of (seed, rank, step), so a resumed training is the same bit for bit.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from components.contracts.errors import BadTaskError
from components.contracts.training import CheckpointRecord, Direction, TrainingResult
from components.engine.checkpoints.folder import (
    CheckpointManifest,
    KeptAs,
    Progress,
    choose_kept,
    commit,
    committed,
    discard_uncommitted,
    newest_intact,
    partial_path,
    prune,
    verify,
)
from components.engine.distributed import World
from components.engine.task import Task, load_task

logger = logging.getLogger(__name__)


class Checkpointer:
    """Saves, restores and retires the checkpoints of one training.

    Args:
        folder: Seen by all ranks.
        fingerprint: Of this training.
        retention: How many of the best to keep, by which metric, and which way is better.
        world: All ranks call every method together.
    """

    def __init__(
        self, folder: Path, fingerprint: str, retention: tuple[int, str, Direction], world: World
    ) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._keep_best, self._metric, self._direction = retention
        self._world = world

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Load the newest intact checkpoint, if there is one, and say how far it had come."""
        found = None
        if self._world.is_first:
            self._folder.mkdir(parents=True, exist_ok=True)
            discard_uncommitted(self._folder)
            found = newest_intact(self._folder, self._fingerprint)
        found = self._world.from_first((found,))[0]
        if found is None:
            return Progress()
        path, manifest = found
        state = _state(model, optimizer)
        with _quiet():
            load(state, checkpoint_id=path)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        logger.info("resumed_from=%s step=%d", path, manifest.step)
        resumes = manifest.progress.num_resumes + 1
        return manifest.progress.model_copy(update={"num_resumes": resumes})

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        metrics: dict[str, float],
    ) -> None:
        """Write a checkpoint, then retire those that it makes superfluous."""
        partial = partial_path(self._folder, progress.step)
        with _quiet():
            # Without collectives a later load into fewer ranks silently misses shards.
            save(_state(model, optimizer), checkpoint_id=partial, use_collectives=True)
        if self._world.is_first:
            commit(
                self._folder,
                CheckpointManifest(
                    fingerprint=self._fingerprint, step=progress.step, metrics=metrics, files={},
                    progress=progress,
                ),
            )  # fmt: skip
            prune(self._folder, self._kept())
        self._world.barrier()

    def records(self) -> tuple[CheckpointRecord, ...]:
        """What is kept, oldest first."""
        kept = self._kept()
        return tuple(
            CheckpointRecord(
                step=manifest.step, uri=str(path), metrics=manifest.metrics,
                kept_as=kept[manifest.step],
            )
            for path, manifest in self._manifests()
            if manifest.step in kept
        )  # fmt: skip

    def _kept(self) -> dict[int, KeptAs]:
        return choose_kept(
            ((manifest.step, manifest.metrics) for _, manifest in self._manifests()),
            keep_best=self._keep_best,
            metric=self._metric,
            direction=self._direction,
        )

    def _manifests(self) -> Iterator[tuple[Path, CheckpointManifest]]:
        for path in committed(self._folder):
            yield path, CheckpointManifest.read(path)


def load_checkpoint_model(checkpoint: Path, result: TrainingResult) -> tuple[Task, nn.Module]:
    """The full model of one checkpoint, in one process, in evaluation mode.

    Args:
        checkpoint: A checkpoint's folder, as in `CheckpointRecord.uri`.
        result: The training that it belongs to.

    Raises:
        DamagedCheckpointError: its bytes are not those that were written.
        BadTaskError: the task's model is not the one that was trained.
    """
    verify(checkpoint)
    task = load_task(result.task, result.options, result.columns)
    task.load_state(result.task_state)
    model = task.build_model()
    state = {"model": model.state_dict()}
    stored = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    trained = {name.removeprefix("model.") for name in stored if name.startswith("model.")}
    try:
        if trained != set(state["model"]):
            # Loading takes what it is asked for: a model that lost a layer would load without it.
            raise RuntimeError(f"names differ: {sorted(trained ^ set(state['model']))[:5]}")
        with _quiet():
            load(state, checkpoint_id=checkpoint, no_dist=True)
        model.load_state_dict(state["model"])
    except (RuntimeError, CheckpointException) as error:
        raise BadTaskError(
            f"the weights in {checkpoint} do not fit the model of {result.task}",
            evidence=str(error).splitlines()[0],
            action="the task's code changed after the training; check out its commit",
        ) from error
    return task, model.eval()


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the library's warnings about its own internals."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.distributed")
        yield
