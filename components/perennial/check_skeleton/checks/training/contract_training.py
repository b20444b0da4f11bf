"""The contract's own training, made small: optimizer, rate, clipping and batches, fifty updates."""

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
from perennial.engine.config import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.data.encoded import EncodedSplit
from perennial.engine.optimization.optimizer import follow_schedule
from perennial.engine.optimization.schedule import learning_rate
from perennial.engine.optimization.schedule_config import OneCycle, Schedule
from perennial.engine.parallelism.config import Memory
from perennial.engine.profiling.flops import flops_per_example
from perennial.engine.profiling.probe import Subject as Probed
from perennial.engine.profiling.probe import Update, UpdatePoint
from perennial.engine.task import LABEL, Batch, inputs_of

STEPS = 50
EVERY = 10
# What a core does in a few seconds. A decoder's hundreds of tokens per example leave few examples.
ARITHMETIC = 1e11
FEWEST_ROWS = 4
FIXED_ROWS = 256
PATHS = 6
CLEAR_ERRORS = 3.0
RISE = 1.02
# Weight decay alone moves rows that no example asks for, by far less than an update does.
DECAYED = 0.02


@dataclass
class Course:
    """A short training, as far as it got.

    Attributes:
        factor: Of the contract's learning rate.
        points: What each update measured.
        losses: Step → losses of the fixed batch, shape [N], nothing random.
        trained: The same of what is minimised, which class weights or smoothing may make other.
        paths: Step → predictions of a few examples.
        growth: How many times as long the weight matrices became.
        moved: Share of the weights' length that the batches reached: of a large embedding, few
            rows are.
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
        """Mean loss of the fixed batch behind the last one; infinite if it is no number."""
        value = float(self.losses[max(self.losses)].mean())
        return value if self.is_finite and math.isfinite(value) else math.inf

    @property
    def is_finite(self) -> bool:
        """Whether every update was a number."""
        return all(math.isfinite(each.loss + each.gradient_norm) for each in self.points)

    @property
    def errors(self) -> float:
        """Standard errors by which the fixed batch's loss fell."""
        return _errors(self.losses)

    @property
    def rises(self) -> bool:
        """Whether what is measured and what is minimised end clearly above their start."""
        if not math.isfinite(self.end):
            return True
        return all(_rises(losses) for losses in (self.losses, self.trained))

    @property
    def goes_wrong(self) -> bool:
        """Whether what is measured and what is minimised clearly rise, be it by little."""
        return all(_errors(losses) < -CLEAR_ERRORS for losses in (self.losses, self.trained))

    @property
    def settled(self) -> Sequence[UpdatePoint]:
        """The updates behind the climb of the learning rate."""
        return self.points[len(self.points) // 2 :]

    def __str__(self) -> str:
        return f"{self.start:.4g} → {self.end:.4g}"


@dataclass(frozen=True)
class Trial:
    """The contract's training, made small.

    Attributes:
        training: With a batch that is cheap, its rate by the optimizer's scaling rule, and a climb
            that leaves half of the updates to the peak rate.
        data: Encoded sample of the training split.
        fixed: Examples whose loss and predictions are followed.
    """

    training: TrainingSection
    data: EncodedSplit
    fixed: Batch

    @classmethod
    def of(cls, subject: Subject) -> "Trial":
        """The training that a subject's contract asks for."""
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
        """The training with another learning rate."""
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
    """Standard errors by which losses fell."""
    return z_score((losses[0] - losses[max(losses)]).numpy())


def _batch_rows(subject: Subject) -> int:
    """Examples per update: the contract's, within what the checks may cost."""
    task, rows = subject.task, len(subject.train[LABEL])
    rows = min(rows, subject.training.global_batch_size, subject.settings.batch_rows)
    cost = flops_per_example(task, head_of(subject.train, max(2, task.scored_together)))
    if cost:
        rows = min(rows, max(FEWEST_ROWS, int(ARITHMETIC / (STEPS * cost))))
    return rows


def _fixed_batch(subject: Subject, rows: int) -> Batch:
    """Examples from all of the sample; whole groups where they are scored together."""
    count, group = len(subject.train[LABEL]), subject.task.scored_together
    wanted = min(FIXED_ROWS, 8 * rows, count, subject.task.scoring_rows)
    starts = torch.linspace(0, count - group, max(1, wanted // group)).long()
    index = (starts[:, None] + torch.arange(group)).flatten()
    return rows_of(subject.train, index)


def _compressed(training: TrainingSection) -> Schedule:
    """The schedule, shortened until its climb takes half of the first steps at most."""
    schedule = training.schedule
    length = schedule.steps or training.steps
    climb = schedule.rise_fraction if isinstance(schedule, OneCycle) else schedule.warmup_fraction
    if climb * length > STEPS / 2:
        length = max(1, int(STEPS / 2 / climb))
    return schedule.model_copy(update={"steps": length, "allow_other_length": True})


def run(subject: Subject, trial: Trial, factor: float, steps: int = STEPS) -> Course:
    """Train afresh; ends at the first update that is no number."""
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
    """Losses and predictions of the fixed examples, dropout off."""
    task = subject.task
    with torch.no_grad():
        output = simplified(model)(**inputs_of(fixed)).float()
        course.losses[step] = task.losses(output, fixed).double()
        course.trained[step] = task.training_losses(output, fixed).double()
        values = task.statistic(output, fixed) if task.kind == "statistic" else task.predict(output)
    model.train()
    values = values.double().reshape(len(values), -1)
    # Of several classes the right one's probability; of several statistics the first.
    column = fixed[LABEL].long() if task.kind == "multiclass" else torch.zeros(len(values)).long()
    shown = shown_examples(fixed)
    course.paths[step] = values[shown, column[shown]].tolist()


def shown_examples(fixed: Batch) -> Tensor:
    """Positions of the examples whose predictions are followed."""
    return torch.linspace(0, len(fixed[LABEL]) - 1, min(PATHS, len(fixed[LABEL]))).long()


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    """What is trained of two dimensions and more."""
    return [each for each in model.parameters() if each.requires_grad and each.ndim > 1]


def _lengths(model: nn.Module) -> list[float]:
    """Of each trainable matrix, and what has more dimensions."""
    return [float(torch.linalg.vector_norm(e.detach().double())) for e in _matrices(model)]


def _moved(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The share of all weights' length that lies in rows which more than decay has moved."""
    squares = [0.0, 0.0]
    for old, new in zip(before, after, strict=True):
        moves = (new.detach() - old).abs().flatten(1).amax(dim=1)
        rows = old.double().flatten(1).square().sum(dim=1)
        squares[0] += float(rows[moves > DECAYED * moves.max()].sum())
        squares[1] += float(rows.sum())
    return math.sqrt(squares[0] / squares[1]) if squares[0] and squares[1] else 1.0


def _growth(before: Sequence[float], after: Sequence[float]) -> float:
    """How many times as long all became that did not start at zero."""
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old > 0]
    if not pairs:
        return 1.0
    old, new = (math.hypot(*lengths) for lengths in zip(*pairs, strict=True))
    return new / old if math.isfinite(new) else math.inf


def travel(course: Course, training: TrainingSection, trial: Trial) -> float:
    """Lengths of the weights that all updates of the budget would cover, at the most."""
    optimizer = training.optimizer
    here = trial.training.optimizer.peak_rate(trial.training.global_batch_size)
    scale = optimizer.peak_rate(training.global_batch_size) / here
    steps = np.linspace(0, training.steps - 1, min(STEPS * 10, training.steps)).round()
    shares = [learning_rate(1.0, training.schedule, int(step), training.steps) for step in steps]
    ratio = median(each.ratio for each in course.settled)
    return ratio / course.moved * scale * float(np.mean(shares)) * training.steps
