"""Plan: the short trainings of a task that must give equal results, their files and records."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

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
from perennial.engine.data.batching import Indices
from perennial.engine.job import TrainingJob
from perennial.engine.task import Batch, inputs_of

STEPS = 6
SAVED_AFTER = 3
PROCESSES = 2
# An epoch ends within a global batch, and two and more of them pass.
EPOCH_BATCHES = 2.5
ROWS = "rows"
PROBLEM = "problem.txt"

RandomnessOff = Literal["dropout", "evaluation", "noise"]
"""How two forward passes are made equal: dropout layers off, or evaluation mode; `noise` where
neither does."""


@dataclass(frozen=True)
class Trial:
    """One training of `STEPS` updates, or a part of it."""

    name: str  # name of the trial
    training: TrainingSection  # settings for the engine
    processes: int  # number of processes that train together
    job: str  # trials of one job resume each other
    # Without anything random, so that any number of processes computes the same.
    is_exact: bool = False
    is_needed: bool = False  # whether later trials are useless when this one fails
    is_rounded: bool = False  # whether it starts from weights that differ by about a rounding


@dataclass(frozen=True)
class Plan:
    """Settings that all trials of a task have in common."""

    folder: Path  # folder of their files
    task: bytes  # the pickled function that creates the task, and the state of the fitted task
    randomness_off: RandomnessOff  # how randomness is kept out of exact trials
    most_seconds: float  # time limit of a trial
    environment: Mapping[str, str]  # environment variables of every rank


def plan_stages(
    subject: Subject, size: int, randomness_off: RandomnessOff, *, has_batch_norm: bool
) -> tuple[tuple[Trial, ...], ...]:
    """Return the trials in stages, in order."""
    exact = make_exact_training(subject.training, size, has_batch_norm=has_batch_norm)

    def exactly(name: str, strategy: Strategy, passes: int, processes: int = 1) -> Trial:
        changes = {"strategy": strategy, "micro_batch_size": size // passes}
        section = exact.model_copy(update=changes)
        return Trial(name, section, processes, name, is_exact=True, is_needed=name == "alone")

    stages: list[tuple[Trial, ...]] = [(exactly("alone", "single", 1),)]
    if subject.training.strategy != "single" and randomness_off != "noise":
        if not subject.task.needs_whole_batch:
            stages = [(*stages[0], exactly("passes", "single", PROCESSES))]
        stages += [(exactly(name, name, PROCESSES, PROCESSES),) for name in ("ddp", "fsdp")]
    section = make_contracted_training(subject.training, size)
    processes = 1 if section.strategy == "single" else PROCESSES
    straight = Trial("straight", section, processes, "contracted", is_needed=True)
    # From the checkpoint that the one before left on its way.
    resumed = Trial("resumed", section, processes, "contracted")
    return (*stages, (straight,), (resumed,))


def make_exact_training(
    training: TrainingSection, size: int, *, has_batch_norm: bool
) -> TrainingSection:
    """Return a training with plain gradient descent, which does not amplify rounding errors.

    Adaptive optimizers turn them into whole steps where a gradient is zero in theory, as before a
    normalisation.
    """
    return TrainingSection(
        seed=training.seed,
        steps=STEPS,
        global_batch_size=size,
        micro_batch_size=size,
        optimizer=Sgd(name="sgd", learning_rate=0.1, momentum=0.0, nesterov=False),
        schedule=Constant(shape="constant", warmup_fraction=0.0),
        clipping=NormClipping(max_norm=1.0),
        evaluate_every_steps=STEPS,
        log_every_steps=1,
        normalization=Normalization(batch_norm="sync" if has_batch_norm else "local"),
        watchdog=Watchdog(hang_factor=None),
        stragglers=Stragglers(every_steps=None),
        checkpoints=Checkpoints(asynchronous=False),
    )


def make_contracted_training(training: TrainingSection, size: int) -> TrainingSection:
    """Return the contract's training (optimizer, schedule, clipping) for two CPU processes."""
    strategy = training.strategy if training.strategy in ("single", "ddp") else "fsdp"
    processes = 1 if strategy == "single" else PROCESSES
    return training.model_copy(
        update={
            "global_batch_size": size,
            "micro_batch_size": size // processes,
            "strategy": strategy,
            "parallelism": Parallelism(),
            "memory": Memory(),
            "precision": "fp32" if training.precision == "fp16" else training.precision,
            "allow_tf32": False,
            "compile": False,
            "loading": Loading(),
            "profile": None,
            "log_every_steps": 1,
            "watchdog": Watchdog(hang_factor=None),
            "stragglers": Stragglers(every_steps=None),
            "checkpoints": Checkpoints(asynchronous=False),
        }
    )


def make_job(folder: Path, trial: Trial) -> TrainingJob:
    """Return the engine's job of a trial."""
    return TrainingJob(
        fingerprint=trial.job,
        snapshot="",
        training=trial.training,
        model=ModelSection(name="trial", task="perennial.engine.task:Task"),
        num_processes=trial.processes,
        folder=str(folder / trial.job),
    )


def find_record_file(folder: Path, trial: Trial, rank: int, kind: str = "record") -> Path:
    """Return the file with a rank's record, or (`step`) with the number of its updates."""
    return folder / f"trial-{trial.name}" / f"rank-{rank}.{kind}"


@dataclass(frozen=True)
class StepRecord:
    """One update of one rank."""

    step: int  # counted from 1
    loss: float  # loss of the global batch
    rows: Indices  # rows of this rank
    # A digest of the inputs of each of its examples, as the model received them.
    examples: tuple[str, ...]
    is_seed_kept: bool  # whether the global seed is still the engine's own after the update


@dataclass(frozen=True)
class Probe:
    """Random draws of one rank on the same rows as every other rank."""

    losses: Tensor  # loss of each example, in training mode
    # Whether the pass drew from a global generator, with any effect: where a row is left out once
    # in a thousand draws, none may be.
    is_random: bool
    augmented: str  # A digest of the augmented rows; empty where `augment` changes nothing


@dataclass
class RankRecord:
    """The record of one rank of a trial."""

    initial: str = ""  # A digest of the weights before the model was divided
    steps: list[StepRecord] = field(default_factory=list)  # the updates
    # The initial weights; only on the first rank of the reference trial.
    start: dict[str, Tensor] = field(default_factory=dict)
    # The final weights of the whole model; only on the first rank of exact trials.
    weights: dict[str, Tensor] = field(default_factory=dict)
    # A digest of each final weight, on every rank.
    final: dict[str, str] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()  # names of the weights that are parameters
    # Attributes of model and task that changed in training and are not in a checkpoint.
    drifting: tuple[str, ...] = ()
    probe: Probe | None = None  # none in exact trials
    twins: int = 0  # stored examples whose inputs repeat another one's


def write_record(file: Path, record: RankRecord) -> None:
    """Store a rank's record as tensors and plain values: reading them runs no code."""

    def make_plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: each.detach().as_subclass(Tensor) for name, each in tensors.items()}

    plain = {
        **vars(record),
        "start": make_plain(record.start),
        "weights": make_plain(record.weights),
        "steps": [{**vars(each), "rows": torch.from_numpy(each.rows)} for each in record.steps],
        "parameters": sorted(record.parameters),
        "probe": {**vars(record.probe), **make_plain({"losses": record.probe.losses})}
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


def compute_digest(tensors: Batch) -> str:
    """Return a digest of names, shapes and every bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if is_lazy(tensor):
            continue  # has no content before the first forward pass
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_read_bytes(tensor))
    return digest.hexdigest()


def compute_digests(batch: Batch) -> list[str]:
    """Return a digest of the inputs of each example."""
    inputs = sorted(inputs_of(batch).items())
    rows = len(inputs[0][1])
    return [
        hashlib.sha256(b"".join(_read_bytes(tensor[row]) for _, tensor in inputs)).hexdigest()
        for row in range(rows)
    ]


def _read_bytes(tensor: Tensor) -> bytes:
    if not tensor.numel():
        return b""  # tensors without columns, as of a table without categories, have no bytes
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
