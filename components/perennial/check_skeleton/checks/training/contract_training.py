"""Contract training: a short version with the contract's optimizer, rate, clipping and batches."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.training.input_independence import z_score
from perennial.check_skeleton.short_training import simplified
from perennial.check_skeleton.subject import Subject, head_of, rows_of
from perennial.engine.config.optimization import OneCycle, Schedule
from perennial.engine.config.parallelism import Memory
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.data.encoded import EncodedSplit
from perennial.engine.optimization.optimizer import follow_schedule
from perennial.engine.optimization.schedule import learning_rate
from perennial.engine.profiling.flops import flops_per_example
from perennial.engine.profiling.probe import Subject as Probed
from perennial.engine.profiling.probe import Update, UpdatePoint
from perennial.engine.task import LABEL, Batch, inputs_of

STEPS = 50
EVERY = 10
# Operations of a core in a few seconds. A decoder with long texts then gets few examples.
ARITHMETIC = 1e11
FEWEST_ROWS = 4
FIXED_ROWS = 256
PATHS = 6
CLEAR_ERRORS = 3.0
RISE = 1.02
# Weight decay alone moves rows that no example uses, far less than an update does.
DECAYED = 0.02


@dataclass
class Course:
    """The course of a short training.

    Attributes:
        factor: Factor of the contract's learning rate.
        points: Measurements of each update.
        losses: Step → losses of the fixed batch, shape [N], nothing random.
        trained: The same for the training loss, which class weights or smoothing may change.
        paths: Step → predictions of a few examples.
        growth: Length of the weight matrices at the end over that at the start.
        moved: Share of the weights' length that the batches reached: few rows of a large
            embedding.
    """

    factor: float
    points: list[UpdatePoint] = field(default_factory=list)
    losses: dict[int, Tensor] = field(default_factory=dict)
    trained: dict[int, Tensor] = field(default_factory=dict)
    paths: dict[int, list[float]] = field(default_factory=dict)
    growth: float = math.inf
    moved: float = 1.0

    @property
    def start(self) -> float:
        """Mean loss of the fixed batch before the first update."""
        return float(self.losses[0].mean())

    @property
    def end(self) -> float:
        """Mean loss of the fixed batch after the last update; infinite if it is not finite."""
        value = float(self.losses[max(self.losses)].mean())
        return value if self.is_finite and math.isfinite(value) else math.inf

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm of every update are finite."""
        return all(math.isfinite(each.loss + each.gradient_norm) for each in self.points)

    @property
    def errors(self) -> float:
        """Standard errors by which the fixed batch's loss fell."""
        return _errors(self.losses)

    @property
    def rises(self) -> bool:
        """Whether measured and minimised loss end clearly above their start."""
        if not math.isfinite(self.end):
            return True
        return all(_rises(losses) for losses in (self.losses, self.trained))

    @property
    def goes_wrong(self) -> bool:
        """Whether measured and minimised loss rise significantly, even if by little."""
        return all(_errors(losses) < -CLEAR_ERRORS for losses in (self.losses, self.trained))

    @property
    def settled(self) -> Sequence[UpdatePoint]:
        """The updates after the warm-up of the learning rate."""
        return self.points[len(self.points) // 2 :]

    def __str__(self) -> str:
        return f"{self.start:.4g} → {self.end:.4g}"


@dataclass(frozen=True)
class Trial:
    """A short version of the contract's training.

    Attributes:
        training: Settings with a cheap batch, its rate by the optimizer's scaling rule, and a
            warm-up that leaves half of the updates at the peak rate.
        data: Encoded sample of the training split.
        fixed: Examples whose loss and predictions are recorded.
    """

    training: TrainingSection
    data: EncodedSplit
    fixed: Batch

    @classmethod
    def of(cls, subject: Subject) -> "Trial":
        """Build the short version of the training in a subject's contract."""
        training, rows = subject.training, _batch_rows(subject)
        peak = training.optimizer.peak_rate(training.global_batch_size)
        optimizer = training.optimizer.model_copy(
            update={
                "learning_rate": peak, "reference_batch_size": training.global_batch_size,
            }
        )  # fmt: skip
        micro = rows if subject.task.needs_whole_batch else min(rows, training.micro_batch_size)
        changed = training.model_copy(
            update={
                "optimizer": optimizer, "schedule": _compressed(training), "compile": False,
                "global_batch_size": rows, "micro_batch_size": micro, "precision": "fp32",
                "allow_tf32": False, "deterministic": False, "memory": Memory(),
            }
        )  # fmt: skip
        return cls(changed, EncodedSplit(subject.train), _fixed_batch(subject, rows))

    def at(self, factor: float) -> TrainingSection:
        """Return the training with another learning rate."""
        optimizer = self.training.optimizer
        rate = factor * optimizer.learning_rate
        changed = optimizer.model_copy(update={"learning_rate": rate})
        return self.training.model_copy(update={"optimizer": changed})


def _rises(losses: Mapping[int, Tensor]) -> bool:
    first, last = losses[0], losses[max(losses)]
    size = float(first.abs().mean())
    is_higher = float(last.mean()) > float(first.mean()) + (RISE - 1) * size
    return is_higher and _errors(losses) < -CLEAR_ERRORS


def _errors(losses: Mapping[int, Tensor]) -> float:
    """Return the standard errors by which losses fell."""
    return z_score((losses[0] - losses[max(losses)]).numpy())


def _batch_rows(subject: Subject) -> int:
    """Return examples per update: those of the contract, within the cost limit of the checks."""
    task, rows = subject.task, len(subject.train[LABEL])
    rows = min(rows, subject.training.global_batch_size, subject.settings.batch_rows)
    cost = flops_per_example(task, head_of(subject.train, max(2, task.scored_together)))
    if cost:
        rows = min(rows, max(FEWEST_ROWS, int(ARITHMETIC / (STEPS * cost))))
    return rows


def _fixed_batch(subject: Subject, rows: int) -> Batch:
    """Return examples from all of the sample; whole groups where they are scored together."""
    count, group = len(subject.train[LABEL]), subject.task.scored_together
    wanted = min(FIXED_ROWS, 8 * rows, count, subject.task.scoring_rows)
    starts = torch.linspace(0, count - group, max(1, wanted // group)).long()
    index = (starts[:, None] + torch.arange(group)).flatten()
    return rows_of(subject.train, index)


def _compressed(training: TrainingSection) -> Schedule:
    """Return the schedule, shortened so that its warm-up takes at most half of the steps."""
    schedule = training.schedule
    length = schedule.steps or training.steps
    climb = schedule.rise_fraction if isinstance(schedule, OneCycle) else schedule.warmup_fraction
    if climb * length > STEPS / 2:
        length = max(1, int(STEPS / 2 / climb))
    return schedule.model_copy(update={"steps": length, "allow_other_length": True})


def run(subject: Subject, trial: Trial, factor: float, steps: int = STEPS) -> Course:
    """Train a new model; stop at the first update that is not finite."""
    task, training = subject.task, trial.at(factor)
    rows = training.global_batch_size
    update = Update(
        Probed(task, trial.data, training, torch.device("cpu")),
        BatchPlan(rows, training.micro_batch_size, 1), measures_ratio=True,
    )  # fmt: skip
    course, before = Course(factor), _lengths(update.model)
    weights = [each.detach().clone() for each in _matrices(update.model)]
    _follow(subject, trial.fixed, update.model, course, 0)
    for step in range(min(steps, training.steps)):
        course.points.append(update(step, follow_schedule(update.optimizer, training, step)))
        if not course.is_finite:
            break
        if (step + 1) % EVERY == 0 or step + 1 in (steps, training.steps):
            _follow(subject, trial.fixed, update.model, course, step + 1)
    course.growth = _growth(before, _lengths(update.model))
    course.moved = _moved(weights, _matrices(update.model))
    return course


def _follow(subject: Subject, fixed: Batch, model: nn.Module, course: Course, step: int) -> None:
    """Record losses and predictions of the fixed examples, without dropout."""
    task = subject.task
    with torch.no_grad():
        output = simplified(model)(**inputs_of(fixed)).float()
        course.losses[step] = task.losses(output, fixed).double()
        course.trained[step] = task.training_losses(output, fixed).double()
        values = task.statistic(output, fixed) if task.kind == "statistic" else task.predict(output)
    model.train()
    values = values.double().reshape(len(values), -1)
    # The probability of the right class; the first of several statistics.
    column = fixed[LABEL].long() if task.kind == "multiclass" else torch.zeros(len(values)).long()
    shown = shown_examples(fixed)
    course.paths[step] = values[shown, column[shown]].tolist()


def shown_examples(fixed: Batch) -> Tensor:
    """Return the positions of the examples whose predictions are recorded."""
    return torch.linspace(0, len(fixed[LABEL]) - 1, min(PATHS, len(fixed[LABEL]))).long()


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return trainable parameters of two dimensions and more."""
    return [each for each in model.parameters() if each.requires_grad and each.ndim > 1]


def _lengths(model: nn.Module) -> list[float]:
    """Return the length (norm) of each trainable matrix."""
    return [float(torch.linalg.vector_norm(e.detach().double())) for e in _matrices(model)]


def _moved(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Return the share of the weights' length in rows that moved by more than decay."""
    squares = [0.0, 0.0]
    for old, new in zip(before, after, strict=True):
        moves = (new.detach() - old).abs().flatten(1).amax(dim=1)
        rows = old.double().flatten(1).square().sum(dim=1)
        squares[0] += float(rows[moves > DECAYED * moves.max()].sum())
        squares[1] += float(rows.sum())
    return math.sqrt(squares[0] / squares[1]) if squares[0] and squares[1] else 1.0


def _growth(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the growth in length of all weights that did not start at zero."""
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old > 0]
    if not pairs:
        return 1.0
    old, new = (math.hypot(*lengths) for lengths in zip(*pairs, strict=True))
    return new / old if math.isfinite(new) else math.inf


def travel(course: Course, training: TrainingSection, trial: Trial) -> float:
    """Return the largest possible movement over the budget, in lengths of the weights."""
    optimizer = training.optimizer
    here = trial.training.optimizer.peak_rate(trial.training.global_batch_size)
    scale = optimizer.peak_rate(training.global_batch_size) / here
    steps = np.linspace(0, training.steps - 1, min(STEPS * 10, training.steps)).round()
    shares = [learning_rate(1.0, training.schedule, int(step), training.steps) for step in steps]
    ratio = median(each.ratio for each in course.settled)
    return ratio / course.moved * scale * float(np.mean(shares)) * training.steps
