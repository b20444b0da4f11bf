"""Check `first_steps`: the first updates of the contract's own training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn

from perennial.check_skeleton.baselines import z_score
from perennial.check_skeleton.free_outputs import compute_constant_losses, find_training_constant
from perennial.check_skeleton.models import simplify
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, select_head, select_rows
from perennial.check_skeleton.verdict import CURVES, PREDICTION_PATHS
from perennial.contracts.errors import PerennialError
from perennial.contracts.skeleton import CheckResult
from perennial.engine.config.optimization import NormClipping, OneCycle, Schedule
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

FACTOR = 100.0
# Updates of one part in a thousand of the weights are healthy. Over the budget they add up: to
# 0.16 to 7 lengths of the weights on healthy tasks, to 0.003 to 0.08 at a hundredth of the rate.
SHORTEST_TRAVEL = 0.1
HOPELESS_TRAVEL = 0.03
# Where the rate is too low, a hundred times the rate lowers the loss 8 to 200 times as much.
FASTER = 4.0
# The budget, or its first part, decides: long weights, such as embeddings that start at 1, need
# not move far.
MOST_STEPS = 1000
LEARNED_SHARE = 0.5
# Plain descent moves less as gradients shrink, so the way that its weights go tells little: its
# rate is too low if fifty updates at a hundred times the rate learn more than the whole budget.
DESCENT_SHARE = 0.75
# A budget that learns less than this of it on held-out rows, from other initial weights, is lost:
# 0.3 with the rate of adam for plain descent, most of it the labels' mean.
LOST_SHARE = 0.4
# Within 50 updates the weights grow 1.0 to 1.3 times on healthy tasks, 2.4 times where embeddings
# start small, and 4.3 to 40 times at a hundred times the rate.
LARGEST_GROWTH = 4.0
# Above this, a tenth of the rate is tried: healthy tasks then learn 0.6 or less of what they do,
# and those with a rate a hundred times too high 1.3 times and more.
SUSPECT_GROWTH = 1.5
LEARNED_LESS = 0.75
# Of what a tenth of the rate learns beyond the best constant.
UNUSED = 0.25
TENTH = 0.1
LONGER = 4
# A linear model needs weights as long as its scores: counts of 1000 tokens with 1e-2 make them 5
# times as long, and learn clearly more than with a third of it. Too high a rate learns less.
LOWER = 1 / 3
# Clipping to 1.0 shortens first gradients of norm 5 of language models and of 55 of contrastive
# ones, whose temperature multiplies them; a loss in dollars instead of units has thousands.
CLIPPED_SHARE = 0.9
LARGEST_EXCESS = 100.0
# Norms at the peak rate lie within a factor of 20 of their median on all reference tasks.
SPIKE = 100.0
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
    """The course of a short training."""

    factor: float  # factor of the contract's learning rate
    points: list[UpdatePoint] = field(default_factory=list)  # measurements of each update
    # Step → losses of the fixed batch, shape [N], nothing random.
    losses: dict[int, Tensor] = field(default_factory=dict)
    # The same for the training loss, which class weights or smoothing may change.
    trained: dict[int, Tensor] = field(default_factory=dict)
    # Step → predictions of a few examples.
    paths: dict[int, list[float]] = field(default_factory=dict)
    growth: float = 1.0  # length of the weight matrices at the end over that at the start
    # Share of the weights' length that the batches reached: few rows of a large embedding.
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
    def gain(self) -> float:
        """By how much the mean loss of the fixed batch fell."""
        return self.start - self.end

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm of every update are finite."""
        return all(math.isfinite(each.loss + each.gradient_norm) for each in self.points)

    @property
    def errors(self) -> float:
        """Standard errors by which the fixed batch's loss fell."""
        return _measure_errors(self.losses)

    @property
    def rises(self) -> bool:
        """Whether measured and minimised loss end clearly above their start."""
        if not math.isfinite(self.end):
            return True
        return self.goes_wrong and all(
            float(losses[max(losses)].mean() - losses[0].mean())
            > (RISE - 1) * float(losses[0].abs().mean())
            for losses in (self.losses, self.trained)
        )

    @property
    def goes_wrong(self) -> bool:
        """Whether measured and minimised loss rise significantly, even if by little."""
        return max(map(_measure_errors, (self.losses, self.trained))) < -CLEAR_ERRORS

    @property
    def settled(self) -> Sequence[UpdatePoint]:
        """The updates after the warm-up of the learning rate."""
        return self.points[len(self.points) // 2 :]

    def __str__(self) -> str:
        return f"{self.start:.4g} → {self.end:.4g}"


@dataclass(frozen=True)
class ShortTraining:
    """A short version of the contract's training."""

    # Settings with a cheap batch, its rate by the optimizer's scaling rule, and a warm-up that
    # leaves half of the updates at the peak rate.
    training: TrainingSection
    data: EncodedSplit  # encoded sample of the training split
    fixed: Batch  # examples whose loss and predictions are recorded

    @classmethod
    def of(cls, subject: Subject) -> "ShortTraining":
        """Build the short version of the training in a subject's contract."""
        training, task = subject.training, subject.task
        rows = min(subject.num_rows(), training.global_batch_size, subject.settings.batch_rows)
        cost = flops_per_example(task, select_head(subject.train, max(2, task.scored_together)))
        if cost:
            rows = min(rows, max(FEWEST_ROWS, int(ARITHMETIC / (STEPS * cost))))
        peak = training.optimizer.peak_rate(training.global_batch_size)
        optimizer = training.optimizer.model_copy(
            update={"learning_rate": peak, "reference_batch_size": training.global_batch_size}
        )
        micro = rows if task.needs_whole_batch else min(rows, training.micro_batch_size)
        changed = training.model_copy(
            update={
                "optimizer": optimizer,
                "schedule": _compress_schedule(training),
                "compile": False,
                "global_batch_size": rows,
                "micro_batch_size": micro,
                "precision": "fp32",
                "allow_tf32": False,
                "deterministic": False,
                "memory": Memory(),
            }
        )
        fixed = _select_spread(subject, subject.train, 8 * rows)
        return cls(changed, EncodedSplit(subject.train), fixed)

    def at(self, factor: float) -> TrainingSection:
        """Return the training with another learning rate."""
        optimizer = self.training.optimizer
        rate = factor * optimizer.learning_rate
        changed = optimizer.model_copy(update={"learning_rate": rate})
        return self.training.model_copy(update={"optimizer": changed})


def _select_spread(subject: Subject, batch: Batch, most: int) -> Batch:
    """Return examples from all of a sample; whole groups where they are scored together."""
    task, rows = subject.task, len(batch[LABEL])
    group = task.scored_together
    wanted = min(FIXED_ROWS, most, rows, task.scoring_rows)
    starts = torch.linspace(0, rows - group, max(1, wanted // group)).long()
    return select_rows(batch, (starts[:, None] + torch.arange(group)).flatten())


@check(
    "first_steps",
    expects=f"within {STEPS} updates a loss that does not rise, weights that grow less than "
    f"{LARGEST_GROWTH:g} times, updates that move them by more than {SHORTEST_TRAVEL:g} of "
    "their length over the budget",
    source="guides: watch the first updates and a fixed batch's predictions; updates of about "
    "1e-3 of the weights; learning rates matter by factors of ten",
)
def check_first_steps(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the contract's training starts well."""
    if obstacle := _find_obstacle(subject):
        return judge.skipped(obstacle)
    try:
        trial = ShortTraining.of(subject)
        course = run(subject, trial, 1.0)
    except PerennialError as error:
        return judge.skipped(f"needs an optimizer that can be built: {error.problem}")
    if course.rises or _outgrows(course, subject, trial):
        return _judge_too_high(judge, course, run(subject, trial, 1 / FACTOR), subject, trial)
    return _judge_too_low(judge, course, subject, trial) or _judge_gradients(
        judge, course, subject, trial
    )


def _outgrows(course: Course, subject: Subject, trial: ShortTraining) -> bool:
    """Whether the weights grow without learning as much as at a lower rate."""
    if course.growth > LARGEST_GROWTH:
        return not _learns_by(course, subject, trial)
    if course.growth < SUSPECT_GROWTH or not _ends_lower(run(subject, trial, TENTH), course):
        return False
    ended, slower = (run(subject, trial, rate, LONGER * STEPS) for rate in (1.0, TENTH))
    if not _ends_lower(slower, ended):
        return False
    if ended.gain < LEARNED_LESS * slower.gain:
        return True
    # What one output for all rows reaches was not learned from the inputs.
    constant = find_training_constant(subject)[0]
    reached = float(compute_constant_losses(subject, constant, trial.fixed).mean())
    return max(reached - ended.end, 0.0) < UNUSED * (reached - slower.end)


def _learns_by(course: Course, subject: Subject, trial: ShortTraining) -> bool:
    """Whether the loss falls clearly further at a rate than at a third of it."""
    return _ends_lower(course, run(subject, trial, LOWER))


def _ends_lower(course: Course, other: Course) -> bool:
    """Whether the fixed batch's losses clearly end lower than in another course."""
    ends = [each.losses[max(each.losses)] for each in (other, course)]
    return z_score((ends[0] - ends[1]).numpy()) >= CLEAR_ERRORS


def _judge_too_high(
    judge: Judge, course: Course, slower: Course, subject: Subject, trial: ShortTraining
) -> CheckResult:
    evidence = _collect_evidence(subject, trial, course, slower)
    rate = subject.training.optimizer.peak_rate(subject.training.global_batch_size)
    shown = (
        f"loss {course}, weights {course.growth:.3g} times as long at rate {rate:.3g}; "
        f"loss {slower} at a hundredth of it"
    )
    if not slower.is_finite:
        return judge.failed(
            shown,
            hint="the learning rate is not the cause: look for divisions by zero, logarithms of "
            "zero, huge inputs and a huge initialisation",
            **evidence,
        )
    if slower.goes_wrong:
        return judge.warned(
            shown,
            hint="the loss rises at any learning rate: the minimised loss is not the measured "
            "loss; compare augment and training_losses with losses",
            **evidence,
        )
    hint = (
        f"the learning rate is too high: lower optimizer.learning_rate, to between "
        f"{rate / FACTOR:.2g} and {rate / 10:.2g}, or lengthen the warm-up"
    )
    if course.rises or slower.end < course.end:
        return judge.failed(shown, hint=hint, **evidence)
    return judge.warned(shown, hint=hint, **evidence)


def _judge_too_low(
    judge: Judge, course: Course, subject: Subject, trial: ShortTraining
) -> CheckResult | None:
    """Judge a rate at which the budget is not enough to learn; None if it is enough."""
    training = subject.training
    travel = measure_travel(course, training, trial)
    is_short = travel < SHORTEST_TRAVEL
    is_descent = training.optimizer.name == "sgd" and training.steps <= MOST_STEPS
    if not (is_short or is_descent):
        return None
    faster = run(subject, trial, FACTOR)
    gain = faster.gain
    is_better = faster.is_finite and faster.errors >= CLEAR_ERRORS
    if not is_better or gain <= FASTER * max(course.gain, 0.0):
        return None
    # The contract's rate may also learn most of it, in the updates of its budget.
    whole = run(subject, trial, 1.0, min(training.steps, MOST_STEPS))
    if whole.gain > (LEARNED_SHARE if is_short else DESCENT_SHARE) * gain:
        return None
    rate = training.optimizer.peak_rate(training.global_batch_size)
    is_hopeless = not HOPELESS_TRAVEL <= travel < SHORTEST_TRAVEL
    if not is_hopeless and training.steps <= MOST_STEPS:
        is_hopeless = is_budget_lost(subject)
    conclude = judge.failed if is_hopeless else judge.warned
    return conclude(
        f"the weights move by at most {travel:.2g} of their length in {training.steps} updates at "
        f"rate {rate:.3g}; loss {course}, {whole.end:.4g} after {len(whole.points)} updates, and "
        f"{faster} at a hundred times the rate",
        hint=_cut_short(subject, course)
        or "the learning rate is too low: raise optimizer.learning_rate, to between "
        f"{10 * rate:.2g} and {FACTOR * rate:.2g}",
        **_collect_evidence(subject, trial, course, faster),
    )


def is_budget_lost(subject: Subject) -> bool:
    """Whether a few updates at a hundred times the rate beat the whole budget on held-out rows.

    From other initial weights; what a high rate memorises of the training rows does not count.
    """
    other = subject.reseeded(1)
    held_out = _select_spread(other, other.validation, FIXED_ROWS)
    trial = replace(ShortTraining.of(other), fixed=held_out)
    faster, whole = run(other, trial, FACTOR), run(other, trial, 1.0, other.training.steps)
    if not faster.is_finite or whole.gain >= LOST_SHARE * faster.gain:
        return False
    return _ends_lower(faster, whole)


def _cut_short(subject: Subject, course: Course) -> str:
    """Return a hint where clipping, not the learning rate, shortens plain gradient steps."""
    training = subject.training
    share = np.mean([each.is_clipped for each in course.points])
    if not isinstance(training.clipping, NormClipping) or share < CLIPPED_SHARE:
        return ""
    if training.optimizer.name != "sgd":
        return ""  # the others divide by the gradients' size
    norm = median(each.gradient_norm for each in course.settled)
    return (
        f"clipping shortens the steps, not the learning rate: gradients of norm {norm:.3g} are cut "
        f"to {training.clipping.max_norm:g} in {share:.0%} of the updates; raise clipping.max_norm"
    )


def _judge_gradients(
    judge: Judge, course: Course, subject: Subject, trial: ShortTraining
) -> CheckResult:
    """Judge gradient norms and clipping of a training with a suitable rate."""
    norms = [each.gradient_norm for each in course.points]
    settled = [each.gradient_norm for each in course.settled]
    typical, share = median(settled), np.mean([each.is_clipped for each in course.points])
    ratio = median(each.ratio for each in course.settled)
    evidence = _collect_evidence(subject, trial, course)
    clipping = subject.training.clipping
    limit = clipping.max_norm if isinstance(clipping, NormClipping) else math.inf
    if share >= CLIPPED_SHARE and typical > LARGEST_EXCESS * limit:
        return judge.warned(
            f"gradients of norm {typical:.3g} are clipped to {limit:g} in {share:.0%} of the "
            "updates",
            hint="the limit, not the learning rate, sets the step: look for a huge "
            "initialisation, unscaled targets or summed losses, or raise clipping.max_norm",
            **evidence,
        )
    if max(settled) > SPIKE * typical:
        return judge.warned(
            f"gradient norms jump from {typical:.3g} to {max(settled):.3g}",
            hint="a few examples dominate all others: look for outliers in labels and inputs, and "
            "clip near the 90th percentile of the norms",
            **evidence,
        )
    return judge.passed(
        f"loss {course} in {len(course.points)} updates of {trial.training.global_batch_size}; "
        f"gradient norms {min(norms):.2g} to {max(norms):.2g}, {share:.0%} clipped; an update "
        f"moves the weights by {ratio:.1e} of their length",
        **evidence,
    )


def _find_obstacle(subject: Subject) -> str:
    """Return why nothing can be trained; empty if training is possible."""
    model = subject.build_model()
    if not any(each.requires_grad for each in model.parameters()):
        return "no parameter is trainable: see parameter_gradients"
    batch = select_head(subject.train, FEWEST_ROWS)
    if not subject.task.losses(model(**inputs_of(batch)), batch).requires_grad:
        return "the loss has no gradient: see parameter_gradients"
    return ""


def _collect_evidence(
    subject: Subject, trial: ShortTraining, *courses: Course
) -> dict[str, JsonValue]:
    """Return loss curves, prediction paths, and the numbers behind the verdict."""
    curves: dict[str, JsonValue] = {}
    for course in courses:
        name = "" if course.factor == 1.0 else f", rate x {course.factor:g}"
        batches = [(float(step), each.loss) for step, each in enumerate(course.points)]
        fixed = [(float(step), float(each.mean())) for step, each in course.losses.items()]
        for kind, line in (("batch", batches), ("fixed examples", fixed)):
            curves[f"{kind}{name}"] = [[step, loss] for step, loss in line if math.isfinite(loss)]
    first, paths = courses[0], dict[str, JsonValue]()
    points = first.settled
    for position, index in enumerate(shown_examples(trial.fixed).tolist()):
        name = f"example {index}"
        if subject.task.kind != "statistic":
            name += f" (label {float(trial.fixed[LABEL][index]):.4g})"
        pairs = ((step, values[position]) for step, values in first.paths.items())
        paths[name] = [[float(step), value] for step, value in pairs if math.isfinite(value)]
    return {
        CURVES: curves,
        PREDICTION_PATHS: paths,
        "update_ratio": median(each.ratio for each in points),
        "gradient_norm": median(each.gradient_norm for each in points),
        "clipped_share": float(np.mean([each.is_clipped for each in first.points])),
        "weight_growth": first.growth if math.isfinite(first.growth) else None,
        "travel": measure_travel(first, subject.training, trial),
    }


def _measure_errors(losses: Mapping[int, Tensor]) -> float:
    """Return the standard errors by which losses fell."""
    return z_score((losses[0] - losses[max(losses)]).numpy())


def _compress_schedule(training: TrainingSection) -> Schedule:
    """Return the schedule, shortened so that its warm-up takes at most half of the steps."""
    schedule = training.schedule
    length = schedule.steps or training.steps
    climb = schedule.rise_fraction if isinstance(schedule, OneCycle) else schedule.warmup_fraction
    if climb * length > STEPS / 2:
        length = max(1, int(STEPS / 2 / climb))
    return schedule.model_copy(update={"steps": length, "allow_other_length": True})


def run(subject: Subject, trial: ShortTraining, factor: float, steps: int = STEPS) -> Course:
    """Train a new model; stop at the first update that is not finite."""
    task, training = subject.task, trial.at(factor)
    rows = training.global_batch_size
    update = Update(
        Probed(task, trial.data, training, torch.device("cpu")),
        BatchPlan(rows, training.micro_batch_size, 1),
        measures_ratio=True,
    )
    course = Course(factor)
    weights = [each.detach().clone() for each in _find_matrices(update.model)]
    _follow(subject, trial.fixed, update.model, course, 0)
    for step in range(min(steps, training.steps)):
        course.points.append(update(step, follow_schedule(update.optimizer, training, step)))
        if not course.is_finite:
            break
        if (step + 1) % EVERY == 0 or step + 1 in (steps, training.steps):
            _follow(subject, trial.fixed, update.model, course, step + 1)
    after = [each.detach() for each in _find_matrices(update.model)]
    # Matrices that start at zero grow without limit.
    if pairs := [(old, new) for old, new in zip(weights, after, strict=True) if bool(old.any())]:
        norms = (
            [float(each.double().norm()) for each in side] for side in zip(*pairs, strict=True)
        )
        old_length, new_length = (math.hypot(*each) for each in norms)
        course.growth = new_length / old_length if math.isfinite(new_length) else math.inf
    squares = [0.0, 0.0]
    for old, new in zip(weights, after, strict=True):
        moves = (new - old).abs().flatten(1).amax(dim=1)
        rows_squared = old.double().flatten(1).square().sum(dim=1)
        # Rows that moved by more than decay, and all rows.
        squares[0] += float(rows_squared[moves > DECAYED * moves.max()].sum())
        squares[1] += float(rows_squared.sum())
    course.moved = math.sqrt(squares[0] / squares[1]) if squares[0] and squares[1] else 1.0
    return course


def _follow(subject: Subject, fixed: Batch, model: nn.Module, course: Course, step: int) -> None:
    """Record losses and predictions of the fixed examples, without dropout."""
    task = subject.task
    with torch.no_grad():
        output = simplify(model)(**inputs_of(fixed)).float()
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


def _find_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return trainable parameters of two dimensions and more."""
    return [each for each in model.parameters() if each.requires_grad and each.ndim > 1]


def measure_travel(course: Course, training: TrainingSection, trial: ShortTraining) -> float:
    """Return the largest possible movement over the budget, in lengths of the weights."""
    optimizer = training.optimizer
    here = trial.training.optimizer.peak_rate(trial.training.global_batch_size)
    scale = optimizer.peak_rate(training.global_batch_size) / here
    steps = np.linspace(0, training.steps - 1, min(STEPS * 10, training.steps)).round()
    shares = [
        learning_rate(1.0, training.schedule, int(step), training.length_at(int(step)))
        for step in steps
    ]
    ratio = median(each.ratio for each in course.settled)
    return ratio / course.moved * scale * float(np.mean(shares)) * training.steps
