"""Preparation: the task fitted once, the splits encoded once per machine, before a training."""

from pathlib import Path

from pydantic import JsonValue

from components.clients.dataset import Dataset
from components.clients.object_store import open_store
from components.contracts.artifact import write_atomically
from components.contracts.data import Split
from components.contracts.snapshot import Snapshot
from components.engine.data.encoded import encode_split
from components.engine.distributed import World, machine_of_this_process
from components.engine.job import FittedTask, TrainingJob
from components.engine.task import Task


def prepare_data(job: TrainingJob, world: World, task: Task, snapshot: Snapshot) -> None:
    """Fit the task on the training split, once, and encode the splits, once per machine."""
    dataset = Dataset(snapshot) if world.local_rank == 0 else None
    state = None
    if world.is_first and dataset is not None:
        state = fitted_state(job, task, dataset)
    # Fitted or read back, all ranks take the same road.
    task.load_state(world.from_first(state))
    if dataset is not None:
        for split in (Split.TRAIN, Split.VALIDATION):
            encode_split(task, dataset, split, encoded(job, split))
    world.barrier()


def encoded(job: TrainingJob, split: Split) -> Path:
    """Where this machine keeps an encoded split; the job's folder may be one for all machines."""
    return job.scratch / f"machine-{machine_of_this_process()}" / split


def fitted_state(job: TrainingJob, task: Task, dataset: Dataset) -> dict[str, JsonValue]:
    """What the task learns from the training split; an earlier attempt's, if there was one."""
    store = open_store(job.store_uri) if job.store_uri else None
    known = store.read(FittedTask.file_name) if store else None
    if known is not None:
        write_atomically(job.root / FittedTask.file_name, known)
    if (job.root / FittedTask.file_name).exists():
        fitted = FittedTask.read(job.root)
        if fitted.fingerprint == job.fingerprint:
            return fitted.state
    task.fit(dataset.scan(Split.TRAIN))
    fitted = FittedTask(fingerprint=job.fingerprint, state=task.state())
    fitted.write(job.root)
    if store:
        store.write(FittedTask.file_name, fitted.to_json().encode())
    return fitted.state
