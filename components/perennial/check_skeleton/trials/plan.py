"""Plan: the short trainings to run, their processes, and the record that each rank writes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from perennial.contracts.data import ModelSection
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import Indices
from perennial.engine.job import TrainingJob
from perennial.engine.task import Task

STEPS = 6
SAVED_AFTER = 3
PLAN = "plan.pickle"
ROWS = "rows"

RandomnessOff = Literal["dropout", "evaluation", "noise"]
"""What makes two forward passes equal: dropout layers off, or evaluation mode; `noise` where
neither does."""


@dataclass(frozen=True)
class Trial:
    """One training of `STEPS` updates, or a part of it.

    Attributes:
        name: Name of the trial.
        training: Settings for the engine.
        processes: Number of processes that train together.
        job: Trials of one job resume each other.
        is_exact: Without anything random, so that any number of processes computes the same.
        is_killed: All its processes kill themselves as soon as their checkpoint is committed.
        is_needed: Whether later trials are useless when this one fails.
    """

    name: str
    training: TrainingSection
    processes: int
    job: str
    is_exact: bool = False
    is_killed: bool = False
    is_needed: bool = False


@dataclass(frozen=True)
class Plan:
    """Input of the fork server.

    Attributes:
        make_task: Creates a task; `state` is loaded in place of a fit.
        state: State of the fitted task.
        randomness_off: How randomness is kept out of exact trials.
        stages: One after the other; the trials of one stage run side by side.
        most_seconds: Time limit of a trial.
    """

    make_task: Callable[[], Task]
    state: Mapping[str, JsonValue]
    randomness_off: RandomnessOff
    stages: tuple[tuple[Trial, ...], ...]
    most_seconds: float


@dataclass(frozen=True)
class StepRecord:
    """One update of one rank.

    Attributes:
        step: Counted from 1.
        loss: Loss of the global batch.
        rows: Rows of this rank.
        examples: A digest of the inputs of each of its examples, as the model received them.
        is_seed_kept: Whether the global seed is still the engine's own after the update.
    """

    step: int
    loss: float
    rows: Indices
    examples: tuple[str, ...]
    is_seed_kept: bool


@dataclass(frozen=True)
class Probe:
    """Random draws of one rank on the same rows as every other rank.

    Attributes:
        losses: Loss of each example, in training mode.
        is_random: Whether the pass drew from a global generator, with any effect: where a row is
            left out once in a thousand draws, none may be.
        augmented: A digest of the augmented rows; empty where `augment` changes nothing.
    """

    losses: Tensor
    is_random: bool
    augmented: str


@dataclass
class RankRecord:
    """The record of one rank of a trial.

    Attributes:
        initial: A digest of the weights before the model was divided.
        steps: The updates.
        start: The initial weights; only on the first rank of the reference trial.
        weights: The final weights of the whole model; only on the first rank of exact trials.
        final: A digest of each final weight, on every rank.
        parameters: Names of the weights that are parameters.
        drifting: Attributes of model and task that changed in training and are not in a checkpoint.
        probe: None in exact trials.
        twins: Stored examples whose inputs repeat another one's.
    """

    initial: str = ""
    steps: list[StepRecord] = field(default_factory=list)
    start: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    final: dict[str, str] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    drifting: tuple[str, ...] = ()
    probe: Probe | None = None
    twins: int = 0


def write_record(file: Path, record: RankRecord) -> None:
    """Store a rank's record as tensors and plain values: reading them runs no code."""
    plain = {
        **vars(record),
        "start": {name: _plain(each) for name, each in record.start.items()},
        "weights": {name: _plain(each) for name, each in record.weights.items()},
        "steps": [{**vars(each), "rows": torch.from_numpy(each.rows)} for each in record.steps],
        "parameters": sorted(record.parameters),
        "probe": {**vars(record.probe), "losses": _plain(record.probe.losses)}
        if record.probe
        else None,
    }
    torch.save(plain, file)


def read_record(file: Path) -> RankRecord:
    """Read a rank's record.

    Raises:
        Exception: the file is damaged or contains anything but tensors and plain values.
    """
    plain = torch.load(file, weights_only=True)
    plain["steps"] = [
        StepRecord(**{**each, "rows": each["rows"].numpy()}) for each in plain["steps"]
    ]
    plain["parameters"] = frozenset(plain["parameters"])
    plain["probe"] = Probe(**plain["probe"]) if plain["probe"] else None
    return RankRecord(**plain)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().as_subclass(Tensor)


def job_of(folder: Path, trial: Trial) -> TrainingJob:
    """Return the engine's job of a trial."""
    return TrainingJob(
        fingerprint=trial.job, snapshot="", training=trial.training,
        model=ModelSection(name="trial", task="perennial.engine.task:Task"),
        num_processes=trial.processes, folder=str(folder / trial.job),
    )  # fmt: skip


def place_of(folder: Path, trial: Trial) -> Path:
    """Return the folder of the records of a trial."""
    return folder / f"trial-{trial.name}"


def record_of(folder: Path, trial: Trial, rank: int) -> Path:
    """Return the file with a rank's record."""
    return place_of(folder, trial) / f"rank-{rank}.record"


def step_file_of(folder: Path, trial: Trial, rank: int) -> Path:
    """Return the file with the number of updates that a rank has finished."""
    return place_of(folder, trial) / f"rank-{rank}.step"


def write_rows(folder: Path, batch: Mapping[str, Tensor]) -> None:
    """Store encoded examples as the engine reads them."""
    (folder / ROWS).mkdir()
    for name, tensor in batch.items():
        np.save(folder / ROWS / f"{name}.npy", tensor.numpy())
