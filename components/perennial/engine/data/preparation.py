"""Preparation: fits the task once and encodes the splits once per machine, before a training."""

import logging
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from pydantic import JsonValue

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.data.encoded import encode_split
from perennial.engine.handover import load_decision, save_decision
from perennial.engine.job import FittedTask, TrainingJob
from perennial.engine.task import Task
from perennial.engine.world.distributed import World, machine_of_this_process

# Practically no limit: a large set takes hours. A process that ends closes its connections, which
# those that wait for it notice at once.
PATIENCE = timedelta(days=30)
logger = logging.getLogger(__name__)


def prepare_data(job: TrainingJob, world: World, task: Task, snapshot: Snapshot) -> None:
    """Fit the task on the training split, once, and encode the splits, once per machine."""
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    dataset = Dataset(snapshot) if world.local_rank == 0 else None
    state: list[dict[str, JsonValue]] = [{}]
    if world.is_first and dataset is not None:
        state = [fitted_state(job, task, dataset)]
    dist.broadcast_object_list(state, src=0, group=group)
    # All ranks continue alike with the fitted or the loaded state.
    task.load_state(state[0])
    if dataset is not None:
        # The fingerprint and the fitted state determine the result.
        digest = FittedTask(fingerprint=job.fingerprint, state=state[0]).digest()
        for split in (Split.TRAIN, Split.VALIDATION):
            encode_split(task, dataset, split, encoded(job, split), digest)
    dist.barrier(group=group)


def encoded(job: TrainingJob, split: Split) -> Path:
    """Return this machine's folder of an encoded split; the job's folder may be shared."""
    return job.scratch / f"machine-{machine_of_this_process()}" / split


def fitted_state(job: TrainingJob, task: Task, dataset: Dataset) -> dict[str, JsonValue]:
    """Fit the task on the training split, or load the state that an earlier attempt fitted."""
    fitted = load_decision(job, FittedTask)
    if fitted is None:
        logger.info("fitting=%s", type(task).__name__)
        task.fit(dataset.scan(Split.TRAIN))
        fitted = FittedTask(fingerprint=job.fingerprint, state=task.state())
        save_decision(job, fitted)
    return fitted.state
