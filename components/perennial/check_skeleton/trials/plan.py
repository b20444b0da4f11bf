"""Plan: which trainings of a few updates are made, by how many processes, and what each leaves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor

from perennial.contracts.data import ModelSection
from perennial.engine.config import TrainingSection
from perennial.engine.data.batching import Indices
from perennial.engine.job import TrainingJob
from perennial.engine.task import Task

STEPS = 6
SAVED_AFTER = 3
PLAN = "plan.pickle"
ROWS = "rows"

RandomnessOff = Literal["dropout", "evaluation", "noise"]
"""What makes two forward passes equal: dropout layers off, or all of evaluation mode; `noise` is
left where neither does."""


@dataclass(frozen=True)
class Trial:
    """One training of `STEPS` updates, or a part of it.

    Attributes:
        name: Of the trial.
        training: What the engine is told.
        processes: How many train together.
        job: Trials of one job resume each other.
        is_exact: Without anything random, so that any number of processes computes the same.
        is_killed: All its processes kill themselves as soon as their checkpoint is committed.
        is_needed: Whether later trials have no use when this one fails.
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
    """What the nursery of the trials is handed.

    Attributes:
        make_task: A new task; it is not fitted but given `state`.
        state: What the task fitted.
        quiet: How randomness is kept out of exact trials.
        stages: One after the other; the trials of one stage run side by side.
        most_seconds: A trial that takes longer is ended.
    """

    make_task: Callable[[], Task]
    state: Mapping[str, JsonValue]
    randomness_off: RandomnessOff
    stages: tuple[tuple[Trial, ...], ...]
    most_seconds: float


@dataclass(frozen=True)
class StepRecord:
    """One update, as one rank made it.

    Attributes:
        step: Counted from 1.
        loss: Of the global batch.
        rows: This rank's.
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
    """What one rank draws on the same rows as every other one.

    Attributes:
        losses: Of each example, in training mode.
        is_random: Whether the pass drew from a global generator, with any effect: where a row is
            left out once in a thousand draws, none may be.
        augmented: A digest of the augmented rows; empty where `augment` changes nothing.
    """

    losses: Tensor
    is_random: bool
    augmented: str


@dataclass
class RankRecord:
    """What one rank of a trial leaves behind.

    Attributes:
        initial: A digest of the weights before the model was divided.
        steps: The updates.
        start: The initial weights; of the first rank of the trial that others are measured by.
        weights: The whole model's in the end; of the first rank of exact trials.
        final: A digest of each of the same, of every rank.
        parameters: Which of the weights are parameters.
        drifting: Attributes of model and task that changed in training and are in no checkpoint.
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
    """Store a rank's record as tensors and plain values, which nothing is run to read."""
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
        Exception: the file is damaged or holds anything but tensors and plain values.
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
    """The engine's job of a trial."""
    return TrainingJob(
        fingerprint=trial.job, snapshot="", training=trial.training,
        model=ModelSection(name="trial", task="perennial.engine.task:Task"),
        num_processes=trial.processes, folder=str(folder / trial.job),
    )  # fmt: skip


def place_of(folder: Path, trial: Trial) -> Path:
    """Where the ranks of a trial leave their records."""
    return folder / f"trial-{trial.name}"


def record_of(folder: Path, trial: Trial, rank: int) -> Path:
    """The file with a rank's record."""
    return place_of(folder, trial) / f"rank-{rank}.record"


def step_file_of(folder: Path, trial: Trial, rank: int) -> Path:
    """The file that says how many updates a rank has finished."""
    return place_of(folder, trial) / f"rank-{rank}.step"


def write_rows(folder: Path, batch: Mapping[str, Tensor]) -> None:
    """Store encoded examples where the engine reads them."""
    (folder / ROWS).mkdir()
    for name, tensor in batch.items():
        np.save(folder / ROWS / f"{name}.npy", tensor.numpy())
