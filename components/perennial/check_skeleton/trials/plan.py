"""Plan: the short trainings of a task that must give equal results, and their files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from perennial.check_skeleton.subject import Subject
from perennial.contracts.data import ModelSection
from perennial.engine.config.optimization import Constant, NormClipping, Sgd
from perennial.engine.config.parallelism import Memory, Parallelism, Strategy
from perennial.engine.config.training import (
    Checkpoints,
    Loading,
    Normalization,
    Stragglers,
    TrainingSection,
    Watchdog,
)
from perennial.engine.job import TrainingJob

STEPS = 6
SAVED_AFTER = 3
PROCESSES = 2
# An epoch ends within a global batch, and two and more of them pass.
EPOCH_BATCHES = 2.5
ROWS = "rows"
PROBLEM = "problem.txt"

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
    """Settings that all trials of a task have in common.

    Attributes:
        folder: Folder of their files.
        task: The pickled function that creates the task, and the state of the fitted task.
        randomness_off: How randomness is kept out of exact trials.
        most_seconds: Time limit of a trial.
        environment: Environment variables of every rank.
    """

    folder: Path
    task: bytes
    randomness_off: RandomnessOff
    most_seconds: float
    environment: Mapping[str, str]


def choose_batch_sizes(subject: Subject) -> tuple[int, int]:
    """Return the rows of a global batch, and the rows of the trials' data set."""
    most = min(subject.settings.batch_rows, subject.training.global_batch_size)
    rows = subject.num_rows()
    size = max(2 * PROCESSES, min(most, int(rows / EPOCH_BATCHES)) // 4 * 4)
    return size, min(rows, int(EPOCH_BATCHES * size))


def plan_stages(
    subject: Subject, size: int, randomness_off: RandomnessOff, *, has_batch_norm: bool
) -> tuple[tuple[Trial, ...], ...]:
    """Return the trials in stages, in order."""
    exact = make_exact_training(subject.training, size, has_batch_norm=has_batch_norm)
    half = exact.model_copy(update={"micro_batch_size": size // PROCESSES})

    def exactly(name: str, strategy: Strategy, training: TrainingSection, processes: int) -> Trial:
        section = training.model_copy(update={"strategy": strategy})
        return Trial(name, section, processes, name, is_exact=True, is_needed=name == "alone")

    alone = exactly("alone", "single", exact, 1)
    stages: list[tuple[Trial, ...]] = []
    if subject.training.strategy == "single" or randomness_off == "noise":
        stages = [(alone,)]
    else:
        passes = exactly("passes", "single", half, 1)
        is_divisible = not subject.task.needs_whole_batch
        stages = [(alone, passes) if is_divisible else (alone,)]
        stages += [(exactly(name, name, half, PROCESSES),) for name in ("ddp", "fsdp")]
    section = make_contracted_training(subject.training, size)
    processes = 1 if section.strategy == "single" else PROCESSES
    straight = Trial("straight", section, processes, "straight", is_needed=True)
    killed = Trial("killed", section, processes, "resumed", is_killed=True, is_needed=True)
    resumed = Trial("resumed", section, processes, "resumed")
    return (*stages, (straight,), (killed,), (resumed,))


def make_exact_training(
    training: TrainingSection, size: int, *, has_batch_norm: bool
) -> TrainingSection:
    """Return a training with plain gradient descent, which does not amplify rounding errors.

    Adaptive optimizers turn them into whole steps where a gradient is zero in theory, as before a
    normalisation.
    """
    return TrainingSection(
        seed=training.seed, steps=STEPS, global_batch_size=size, micro_batch_size=size,
        optimizer=Sgd(name="sgd", learning_rate=0.1, momentum=0.0, nesterov=False),
        schedule=Constant(shape="constant", warmup_fraction=0.0),
        clipping=NormClipping(max_norm=1.0), evaluate_every_steps=STEPS, log_every_steps=1,
        normalization=Normalization(batch_norm="sync" if has_batch_norm else "local"),
        watchdog=Watchdog(hang_factor=None), stragglers=Stragglers(every_steps=None),
        checkpoints=Checkpoints(asynchronous=False),
    )  # fmt: skip


def make_contracted_training(training: TrainingSection, size: int) -> TrainingSection:
    """Return the contract's training (optimizer, schedule, clipping) for two CPU processes."""
    strategy = training.strategy if training.strategy in ("single", "ddp") else "fsdp"
    processes = 1 if strategy == "single" else PROCESSES
    return training.model_copy(
        update={
            "global_batch_size": size, "micro_batch_size": size // processes,
            "strategy": strategy, "parallelism": Parallelism(), "memory": Memory(),
            "precision": "fp32" if training.precision == "fp16" else training.precision,
            "allow_tf32": False, "compile": False, "loading": Loading(), "profile": None,
            "log_every_steps": 1, "watchdog": Watchdog(hang_factor=None),
            "stragglers": Stragglers(every_steps=None),
            "checkpoints": Checkpoints(asynchronous=False),
        }
    )  # fmt: skip


def make_job(folder: Path, trial: Trial) -> TrainingJob:
    """Return the engine's job of a trial."""
    return TrainingJob(
        fingerprint=trial.job, snapshot="", training=trial.training,
        model=ModelSection(name="trial", task="perennial.engine.task:Task"),
        num_processes=trial.processes, folder=str(folder / trial.job),
    )  # fmt: skip


def find_trial_folder(folder: Path, trial: Trial) -> Path:
    """Return the folder of the records of a trial."""
    return folder / f"trial-{trial.name}"


def find_record_file(folder: Path, trial: Trial, rank: int) -> Path:
    """Return the file with a rank's record."""
    return find_trial_folder(folder, trial) / f"rank-{rank}.record"


def find_step_file(folder: Path, trial: Trial, rank: int) -> Path:
    """Return the file with the number of updates that a rank has finished."""
    return find_trial_folder(folder, trial) / f"rank-{rank}.step"


def write_rows(folder: Path, batch: Mapping[str, Tensor]) -> None:
    """Store encoded examples as the engine reads them."""
    (folder / ROWS).mkdir()
    for name, tensor in batch.items():
        np.save(folder / ROWS / f"{name}.npy", tensor.numpy())
