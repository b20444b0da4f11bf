"""Check that the model learns: it memorises a batch, and real inputs beat zeros."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn

from perennial.check_skeleton.baselines import compute_control_losses, z_score
from perennial.check_skeleton.checks.training.copied_inputs import describe_copies
from perennial.check_skeleton.checks.training.goals import TOLERANCE, Goal, find_goal
from perennial.check_skeleton.checks.training.row_shift import find_row_shift
from perennial.check_skeleton.checks.training.single_inputs import find_best_single_input
from perennial.check_skeleton.checks.training.unlearned_columns import describe_unlearned_columns
from perennial.check_skeleton.checks.training.unlearned_ranks import MISSED, describe_ranks
from perennial.check_skeleton.config import SkeletonSection
from perennial.check_skeleton.free_outputs import (
    compute_constant_losses,
    compute_output,
    find_free_outputs,
    find_training_constant,
)
from perennial.check_skeleton.models import (
    compute_mean_loss,
    evaluated,
    is_trained_otherwise,
    measure_loss,
    run_model,
    run_updates,
    shuffle_batches,
    simplify,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Floats, Subject, once, seeded, select_head
from perennial.check_skeleton.verdict import CURVES
from perennial.contracts.errors import join_names
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.task import LABEL, Batch, inputs_of

# A model with ten times more trained numbers than examples can memorise them; with fewer, failure
# does not prove a bug.
PARAMETERS_PER_EXAMPLE = 10
# Frozen layers limit what the layers before and after them can learn.
FROZEN_MARGIN = 10
# Slow learning is not a bug: where a loss fell to half of its start, the best rate gets more steps.
HALVED = 0.5
PATIENCE = 4
# With few columns, examples are close together, and random labels need a steeper function than a
# few hundred updates can learn: a plain network of this width is the control.
CONTROL_WIDTH = 128
CONTROL_SHARE = 1.5
NUM_EVALUATIONS = 5
VARYING_ROWS = 1024
# Real tasks keep more than this share of the constant's loss after a hundred updates or two.
SUSPICIOUS_SHARE = 0.05
# Exchanged inputs cost a model that learned from them about twice its lead over the constant.
LEAST_RELIANCE = 2.0
# Which row gives its inputs is luck: with one exchange, 91 healthy texts reached 1.5 alone.
EXCHANGES = (0.5, 0.25, 0.75)
# How much more clearly a linear model must see the signal before missing it is a failure.
POWER_MARGIN = 2.0
# A copy of the label leaves almost no loss, the best of many legitimate inputs more than half.
TELLING_SHARE = 0.2


@dataclass(frozen=True)
class Fit:
    """The attempt to memorise one batch."""

    losses: Sequence[float]  # loss before each update
    target: float  # the loss that counts as zero
    # Whether all labels are predicted at the end: a fixed temperature, or noise, may keep the loss
    # above the target.
    is_right: bool = False

    @property
    def learned(self) -> bool:
        """Whether the loss reached the target, or every label is predicted."""
        return min(self.losses) <= self.target or self.is_right

    def is_close(self, goal: Goal) -> bool:
        """Whether the loss came close to what counts as zero, above its floor."""
        return self.learned or min(self.losses) <= goal.close

    def __str__(self) -> str:
        return f"{self.losses[0]:.4g} → {min(self.losses):.3g} (target {self.target:.3g})"


@check(
    "overfit_one_batch",
    expects=lambda subject: (
        f"loss below {TOLERANCE:.0%} of the best constant's within "
        f"{subject.settings.overfit_steps} updates"
    ),
    source="guides: if you cannot overfit a tiny batch, stop everything",
)
def check_overfit_one_batch(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the model can memorise two examples, and one batch."""
    settings = subject.settings
    two, batch = subject.balanced(2), subject.balanced(settings.overfit_rows)
    rows = len(batch[LABEL])
    near, far = find_goal(subject, two), find_goal(subject, batch)
    # Two labels that are close together leave almost no loss to compare with.
    small = _find_best_fit(subject, two, near.floor + max(near.margin, far.margin))
    large = _find_best_fit(subject, batch, far.target)
    shown = f"2 examples: {small}; {rows} examples: {large}"
    curves = {
        name: [[float(step), loss] for step, loss in enumerate(fit.losses)]
        for name, fit in (("2 examples", small), (f"{rows} examples", large))
    }
    evidence = {CURVES: curves}
    if small.learned and large.learned:
        return judge.passed(shown, **evidence)
    if small.learned and _is_hard(subject, batch, large):
        shown += "; a plain network does no better, as the examples are close in few columns"
        return judge.passed(shown, **evidence)
    numbers, frozen, silent = _count_used_parameters(subject, batch)
    needed = PARAMETERS_PER_EXAMPLE * (FROZEN_MARGIN if frozen else 1)
    if small.learned and numbers < needed * rows:
        return judge.warned(
            shown,
            hint=f"only {numbers} parameters get a gradient, too few to memorise {rows} "
            "examples; show that a larger model can",
            **evidence,
        )
    if small.is_close(near) and large.is_close(far):
        return judge.warned(
            shown,
            hint="it comes close and no further: examples that are alike may have different "
            f"labels, or the loss has a floor; {numbers} parameters are in play",
            **evidence,
        )
    hint = f"no parameter gets a gradient; frozen: {join_names(frozen)}"
    if numbers < 0:
        hint = (
            "the loss has no gradient: look for detach(), .data, no_grad, numpy or argmax between "
            "the parameters and the loss"
        )
    elif numbers:
        hint = _explain(numbers, large if small.learned else small, settings)
        hint += f"; frozen: {join_names(frozen)}" if frozen else ""
        hint += f"; without gradient: {join_names(silent)}" if silent else ""
    return judge.failed(shown, hint, **evidence)


def _explain(numbers: int, fit: Fit, settings: SkeletonSection) -> str:
    """Return why a batch was not learned: wrong sign, no capacity, or the model."""
    rates = ", ".join(f"{rate:g}" for rate in settings.learning_rates)
    first, best = fit.losses[0], min(fit.losses)
    if not math.isfinite(fit.losses[-1]):
        return (
            f"the loss becomes NaN or infinite at every learning rate of {rates}: look at its "
            "logarithms, roots and divisions"
        )
    if best > 0.99 * first:
        return (
            f"the loss does not fall at any learning rate of {rates}: its sign is wrong, or the "
            "inputs do not distinguish the examples"
        )
    return (
        f"the loss falls to {best / first:.0%} of its start and no further at every learning rate "
        f"of {rates}, so the optimizer is not the cause: look for inputs that do not distinguish "
        f"the examples, and for dead or detached units; {numbers} parameters get a gradient"
    )


def _find_best_fit(subject: Subject, batch: Batch, target: float) -> Fit:
    """Return the fit at the first learning rate that learns the batch, else the lowest one."""
    fit = _fit(subject, batch, target, subject.build_model)
    if fit.learned or not is_trained_otherwise(subject.task):
        return fit
    other = _fit(subject, batch, target, subject.build_model, as_trained=True)
    return other if other.learned else fit


def _fit(
    subject: Subject, batch: Batch, target: float, build_model: Callable[[], nn.Module],
    *, as_trained: bool = False,
) -> Fit:  # fmt: skip
    settings, fits = subject.settings, {}
    made = partial(_fit_at, subject, batch, target, build_model, as_trained=as_trained)
    for rate in settings.learning_rates:
        fits[rate] = made(rate=rate, steps=settings.overfit_steps)
        if fits[rate].learned:
            return fits[rate]
    rate = min(fits, key=lambda rate: min(fits[rate].losses))
    if min(fits[rate].losses) < HALVED * fits[rate].losses[0]:
        return made(rate=rate, steps=PATIENCE * settings.overfit_steps)
    return fits[rate]


def _fit_at(
    subject: Subject, batch: Batch, target: float, build_model: Callable[[], nn.Module],
    *, rate: float, steps: int, as_trained: bool,
) -> Fit:  # fmt: skip
    model, losses, batches = simplify(build_model()), [], repeat(batch, steps + 1)
    for loss in run_updates(subject.task, model, batches, rate, as_trained=as_trained):
        losses.append(float(loss.detach()))
        if losses[-1] <= target and not as_trained:
            break
    is_right = _is_right(subject, simplify(model), batch)
    if as_trained:
        measured = measure_loss(subject.task.losses, run_model(model, batch), batch)
        losses = [*losses[:1], measured]
    return Fit(losses, target, is_right)


def _is_right(subject: Subject, model: nn.Module, batch: Batch) -> bool:
    """Whether all labels of the batch are predicted."""
    task, labels = subject.task, batch[LABEL].double()
    if task.kind == "statistic":
        return False
    predicted = task.predict(run_model(model, batch)).double()
    if task.kind == "regression":
        spread = float((labels - labels.mean()).square().mean())
        error = float((predicted - labels).square().mean())
        return error <= TOLERANCE * spread
    answers = predicted.argmax(dim=-1) if task.kind == "multiclass" else predicted > 0.5
    return bool((answers.double() == labels).all())


def _is_hard(subject: Subject, batch: Batch, fit: Fit) -> bool:
    """Whether a plain network on the same columns does not learn the batch better."""
    inputs = inputs_of(batch).values()
    if any(each.ndim != 2 for each in inputs):
        return False
    columns = torch.cat([_make_columns(each) for each in inputs], dim=1)
    if columns.shape[1] >= len(columns):
        return False  # so many columns separate all examples linearly
    constant = find_free_outputs(subject, compute_output(subject, batch), batch).constant

    def build_control() -> nn.Module:
        with seeded(subject.seed):
            return _Control(columns, constant)

    control = _fit(subject, batch, fit.target, build_control)
    return not control.learned and min(fit.losses) <= CONTROL_SHARE * min(control.losses)


def _make_columns(tensor: Tensor) -> Tensor:
    """Return standardised numbers, or one column for each code."""
    if tensor.is_floating_point():
        return (tensor - tensor.mean(dim=0)) / tensor.std(dim=0).clamp_min(1e-6)
    parts = [(column[:, None] == column.unique()).float() for column in tensor.long().t()]
    return torch.cat(parts, dim=1) if parts else torch.empty(len(tensor), 0)


class _Control(nn.Module):
    """A plain network on fixed columns, which ignores its inputs."""

    def __init__(self, columns: Tensor, constant: Tensor) -> None:
        super().__init__()
        self._columns, self._constant = columns, constant.detach()
        self._layers = nn.Sequential(
            nn.Linear(columns.shape[1], CONTROL_WIDTH), nn.ReLU(),
            nn.Linear(CONTROL_WIDTH, CONTROL_WIDTH), nn.ReLU(),
            nn.Linear(CONTROL_WIDTH, constant.numel()),
        )  # fmt: skip

    def forward(self, **inputs: Tensor) -> Tensor:
        output: Tensor = self._layers(self._columns)
        return self._constant + output.reshape(-1, *self._constant.shape[1:])


def _count_used_parameters(subject: Subject, batch: Batch) -> tuple[int, list[str], list[str]]:
    """Count numbers with a gradient; list frozen parameters, and those without a gradient.

    The count is -1 where the loss does not depend on any parameter.
    """
    model = simplify(subject.build_model())
    named = dict(model.named_parameters())
    frozen = [name for name, each in named.items() if not each.requires_grad]
    trainable = {name: each for name, each in named.items() if each.requires_grad}
    loss = compute_mean_loss(subject.task.losses(model(**inputs_of(batch)), batch), batch)
    if not trainable or not loss.requires_grad:
        return 0 if loss.requires_grad or not trainable else -1, frozen, list(trainable)
    gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    counts = [0 if each is None else int((each != 0).sum()) for each in gradients]
    silent = [name for name, count in zip(trainable, counts, strict=True) if not count]
    return sum(counts), frozen, silent


@dataclass(frozen=True)
class InputAblation:
    """Two trainings that differ only in their inputs, at the evaluation with the largest lead."""

    real: float  # mean validation loss on real inputs
    constant: float  # mean validation loss of the best input-independent model
    z_score: float  # mean paired lead over its standard error
    varies: bool  # whether different rows get different outputs
    # Standard errors by which the trained model is worse on inputs exchanged among rows; infinite
    # where it no longer leads and there is nothing to explain.
    reliance: float
    exchanged: float  # the same standard errors, whether it leads or not
    curves: JsonValue  # validation loss by step, with real and with zeroed inputs

    def __str__(self) -> str:
        return (
            f"validation loss {self.real:.4g} on real inputs, {self.constant:.4g} without: "
            f"{self.z_score:+.1f} standard errors"
        )


@check(
    "input_independent_baseline",
    expects=lambda subject: (
        f"real inputs lead by {subject.settings.significance:g} standard errors within "
        f"{subject.settings.training_steps} updates, but above {SUSPICIOUS_SHARE:.0%} of the loss "
        "without"
    ),
    source="guides: train on zeroed inputs; paired over validation rows, with a linear "
    "model as control for what the sample can show",
)
def check_input_independent_baseline(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the model learns from its inputs."""
    settings = subject.settings
    ablation = _find_best_ablation(subject)
    evidence: dict[str, JsonValue] = {
        CURVES: ablation.curves,
        "z_score": ablation.z_score,
        "exchanged_z_score": ablation.reliance,
    }
    if mistake := _judge_other_labels(judge, subject, ablation, evidence):
        return mistake
    if ablation.z_score >= settings.significance:
        if ablation.reliance < LEAST_RELIANCE:
            return judge.warned(
                f"{ablation}; inputs exchanged among rows cost only {ablation.reliance:.1f}",
                hint="the lead does not come from the inputs: the mean of the label may drift, or "
                "weights or places in the batch may predict the label",
                **evidence,
            )
        if alone := _describe_leak(subject, ablation):
            return judge.warned(
                f"{ablation}: nearly perfect after a few updates{alone}",
                hint="possible leakage: look for the label, or a consequence of it, in the inputs",
                **evidence,
            )
        return _judge_columns(judge, subject, ablation, evidence)
    if not ablation.varies:
        return judge.failed(
            f"{ablation}; the output is the same for every row",
            hint="the inputs do not reach the output: constant encoding, dead units, detach",
            **evidence,
        )
    return _judge_no_signal(judge, subject, ablation, evidence)


def _judge_other_labels(
    judge: Judge, subject: Subject, ablation: InputAblation, evidence: dict[str, JsonValue]
) -> CheckResult | None:
    """Judge inputs that belong to a neighbour's label, and inputs that are copied to their own."""
    if shift := find_row_shift(subject):
        return judge.failed(
            f"{ablation}; but a linear model learns the label of the row {shift} far better",
            hint="labels and inputs are of neighbouring rows: two tables were joined by position, "
            "or one was shifted, sorted or cut alone",
            **evidence,
        )
    if copies := describe_copies(subject):
        return judge.failed(
            f"{ablation}; {copies}",
            hint="the input goes round the narrow part, by a shortcut or a wide layer: whatever "
            "comes is restored, anomalies and noise, too",
            **evidence,
        )
    return None


def _judge_columns(
    judge: Judge, subject: Subject, ablation: InputAblation, evidence: dict[str, JsonValue]
) -> CheckResult:
    """Judge a model that learns from its inputs by the columns that it does not learn from."""
    # Only a warning: months of flights, which are healthy, show it too.
    if left := describe_unlearned_columns(subject, run_plain(subject).predictions):
        return judge.warned(
            f"{ablation}; {left}",
            hint="forward leaves the column out, multiplies it by almost nothing, or may only use "
            "it in one direction: look at slices, scales, masks and constraints on signs",
            **evidence,
        )
    return judge.passed(str(ablation), **evidence)


def _judge_no_signal(
    judge: Judge, subject: Subject, ablation: InputAblation, evidence: dict[str, JsonValue]
) -> CheckResult:
    """Judge a model without a lead by what a linear model learns, and by whether it overfits."""
    control = compute_control_losses(subject)
    power = z_score(control[1] - control[0]) if control else 0.0
    evidence["linear_z_score"] = power
    least = subject.settings.significance + POWER_MARGIN
    shown = f"{ablation}, while a linear model leads by {power:.1f}"
    if power < least and (ranks := describe_ranks(subject, run_plain(subject).predictions)):
        return judge.failed(f"{ablation}{ranks}", hint=MISSED, **evidence)
    if power < least:
        return judge.warned(
            str(ablation),
            hint="neither the model nor a linear model finds a signal in this sample and budget: "
            "raise skeleton.sample_rows and skeleton.training_steps, or check the features",
            **evidence,
        )
    patient = _run_patiently(subject)
    if patient.z_score < least or patient.reliance < LEAST_RELIANCE:
        if not power <= patient.exchanged < math.inf:
            return judge.failed(shown, hint=MISSED, **evidence)
        return judge.warned(
            f"{shown}; with inputs exchanged among rows it is worse by {patient.exchanged:.1f}",
            hint="the model learns from its inputs, but overfits the sample: raise "
            "skeleton.sample_rows, or look at weight decay, embedding sizes and initialisation",
            **evidence,
        )
    return judge.warned(
        f"{shown}; in more updates real inputs lead by {patient.z_score:.1f}",
        hint="the model learns much more slowly than a linear model: look at the learning rate, "
        "initialisation and the scale of the inputs",
        **evidence,
    )


def _describe_leak(subject: Subject, ablation: InputAblation) -> str:
    """Return what makes a result suspicious; empty where many inputs explain it.

    Digits, and labels that follow a rule, are learned quickly without a leak. A leak is one input.
    """
    is_perfect = 0 <= ablation.real < SUSPICIOUS_SHARE * ablation.constant
    if not is_perfect or subject.task.reconstructs_inputs:
        return ""
    if subject.task.kind == "statistic":
        return ", and there is no label to compare single inputs with"
    name, left = find_best_single_input(subject)
    return f"; {name} alone reduces the loss to {left:.0%}" if left <= TELLING_SHARE else ""


def _find_best_ablation(subject: Subject) -> InputAblation:
    """Return the ablation at the first learning rate with a clear lead, else the best one.

    One whose outputs differ comes before the others: a rate that is too high for the model may
    leave all of its units dead.
    """
    ablations, rates = list[InputAblation](), subject.settings.learning_rates
    ways = [(rate, False) for rate in rates]
    ways += [(rates[0], True)] if is_trained_otherwise(subject.task) else []
    for rate, as_trained in ways:
        ablations.append(_run_ablation(subject, rate, as_trained=as_trained))
        if ablations[-1].z_score >= subject.settings.significance:
            return ablations[-1]
    return max(ablations, key=lambda ablation: (ablation.varies, ablation.z_score))


def _run_patiently(subject: Subject) -> InputAblation:
    """Return the ablation after more updates, at most as many as the training has."""
    settings = subject.settings
    steps = min(PATIENCE * settings.training_steps, subject.training.steps)
    patient = replace(subject, settings=settings.model_copy(update={"training_steps": steps}))
    vars(patient).update(train=subject.train, validation=subject.validation)
    return _run_ablation(patient, settings.learning_rates[0], as_trained=False)


def _run_ablation(subject: Subject, rate: float, *, as_trained: bool) -> InputAblation:
    if as_trained or rate != subject.settings.learning_rates[0]:
        real = _run(subject, rate, subject.train, subject.validation, as_trained=as_trained)
    else:
        real = run_plain(subject)
    zeroed = _run_without_inputs(subject, rate)
    # The rival is the best of all: a model that only finds the label's mean faster on real inputs
    # has not learned from them.
    constant = compute_constant_losses(
        subject, find_training_constant(subject)[0], subject.validation
    )
    rivals = [*zeroed.losses.values(), constant.double().numpy()]
    rival = min(filter(_are_finite, rivals), key=np.mean)
    best = max(
        filter(_are_finite, real.losses.values()), key=lambda losses: z_score(rival - losses),
        default=rival,
    )  # fmt: skip
    still_leads = z_score(rival - real.losses[max(real.losses)]) >= subject.settings.significance
    reliance = real.reliance if still_leads else math.inf
    curves: JsonValue = {"real inputs": real.curve(), "zeroed inputs": zeroed.curve()}
    return InputAblation(
        float(best.mean()), float(rival.mean()), z_score(rival - best), real.varies,
        reliance, real.reliance, curves,
    )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """Validation losses, shape [N], by step of a training, and the effect of its inputs."""

    losses: dict[int, Floats]
    varies: bool
    reliance: float
    predictions: Floats  # of the validation sample at the end

    def curve(self) -> JsonValue:
        points = ((step, losses) for step, losses in self.losses.items() if _are_finite(losses))
        return [[float(step), float(losses.mean())] for step, losses in points]


@once
def run_plain(subject: Subject) -> _Run:
    """Return the training on real inputs at the contract's first learning rate."""
    rate = subject.settings.learning_rates[0]
    return _run(subject, rate, subject.train, subject.validation)


def _run(
    subject: Subject, rate: float, train: Batch, validation: Batch, *, as_trained: bool = False
) -> _Run:
    settings, model = subject.settings, simplify(subject.build_model())
    every = max(settings.training_steps // NUM_EVALUATIONS, 1)
    batches = shuffle_batches(subject, train, settings.training_steps)
    updated = run_updates(subject.task, model, batches, rate, as_trained=as_trained)
    losses, predictions = {}, np.zeros(0)
    for step, _ in enumerate(updated, start=1):
        if step % every == 0 or step == settings.training_steps:
            scored = score_in_parts(subject.task, model, validation)
            losses[step], predictions = scored.losses, scored.predictions
            simplify(model)
    rows = min(VARYING_ROWS, subject.task.scoring_rows)
    output = run_model(evaluated(model), select_head(validation, rows))
    varies = not torch.allclose(output, output[:1].expand_as(output))
    reliance = 0.0
    if varies:
        try:
            worse = [
                score_in_parts(subject.task, model, _exchange(validation, share)).losses
                for share in EXCHANGES
            ]
            cost = np.mean(worse, axis=0) - losses[max(losses)]
            # Infinite where another row's inputs rule out the right class.
            reliance = z_score(cost) if _are_finite(cost) else math.inf
        except Exception:  # for instance, one row's tokens with another's lengths
            reliance = math.inf
    return _Run(losses, varies, reliance, predictions)


def _exchange(batch: Batch, share: float) -> Batch:
    """Give each row the inputs of a distant one, by a share of all: neighbours may be alike."""
    distance = int(share * len(batch[LABEL]))
    inputs = inputs_of(batch).items()
    rolled = {name: each.roll(distance + number, 0) for number, (name, each) in enumerate(inputs)}
    return {**batch, **rolled}


def _run_without_inputs(subject: Subject, rate: float) -> "_Run":
    """Train on uninformative inputs: zeros, or where those are rejected the inputs of one row."""
    makers: tuple[Callable[[Tensor], Tensor], ...] = (
        torch.zeros_like, lambda each: each[:1].expand_as(each).clone(),
    )  # fmt: skip
    for make in makers:
        train, validation = (
            {**each, **{name: make(tensor) for name, tensor in inputs_of(each).items()}}
            for each in (subject.train, subject.validation)
        )
        try:
            return _run(subject, rate, train, validation)
        except Exception:  # for instance, sequences of length zero cannot be packed
            logging.getLogger(__name__).info("the task rejects inputs that are all equal")
    return _Run({}, varies=False, reliance=0.0, predictions=np.zeros(0))


def _are_finite(losses: Floats) -> bool:
    return bool(np.isfinite(losses).all())
