"""Overfit one batch: a model that cannot memorise a few examples cannot learn anything."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.token_positions import find_target_offset
from perennial.check_skeleton.config import SkeletonSection
from perennial.check_skeleton.free_outputs import (
    compute_output,
    find_free_outputs,
    reach_loss_by_steps,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.short_training import is_trained_otherwise, simplify, updates
from perennial.check_skeleton.subject import Subject, compute_mean_loss, seeded
from perennial.check_skeleton.verdict import CURVES
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, Batch, Task, inputs_of

# A model with ten times more trained numbers than examples can memorise them; with fewer, failure
# does not prove a bug.
PARAMETERS_PER_EXAMPLE = 10
# Frozen layers limit what the layers before and after them can learn.
FROZEN_MARGIN = 10
SHOWN = 4
# The share of the best constant's loss that counts as zero.
TOLERANCE = 0.05
UNSEEN_SHARE = 1e-6
# Slow learning is not a bug: where a loss fell to half of its start, the best rate gets more steps.
HALVED = 0.5
# Of bugs that nothing else found, the best loss was 7 times what counts as zero, or more; of two
# healthy tasks that did not reach it, 1.3 and 4 times.
CLOSE = 5.0
PATIENCE = 4
# With few columns, examples are close together, and random labels need a steeper function than a
# few hundred updates can learn: a plain network of this width is the control.
CONTROL_WIDTH = 128
CONTROL_SHARE = 1.5


@dataclass(frozen=True)
class Fit:
    """The attempt to memorise one batch.

    Attributes:
        losses: Loss before each update.
        target: The loss that counts as zero.
        is_right: Whether all labels are predicted at the end: a fixed temperature, or noise, may
            keep the loss above the target.
    """

    losses: Sequence[float]
    target: float
    is_right: bool = False

    @property
    def learned(self) -> bool:
        """Whether the loss reached the target, or every label is predicted."""
        return min(self.losses) <= self.target or self.is_right

    def is_close(self, floor: float) -> bool:
        """Whether the loss came close to what counts as zero, above its floor."""
        return min(self.losses) - floor <= CLOSE * (self.target - floor) or self.is_right

    def __str__(self) -> str:
        return f"{self.losses[0]:.4g} → {min(self.losses):.3g} (target {self.target:.3g})"


@dataclass(frozen=True)
class _Goal:
    """The loss of a memorised batch.

    Attributes:
        floor: The least possible loss.
        margin: How far above the floor still counts as zero.
    """

    floor: float
    margin: float


@dataclass(frozen=True)
class _UsedParameters:
    """The parameters that the gradient of a batch reaches.

    Attributes:
        has_graph: Whether the loss depends on any parameter.
        numbers: Number of single values with a gradient.
        frozen: Parameters that are not trainable.
        silent: Trainable parameters without a gradient.
    """

    has_graph: bool
    numbers: int
    frozen: Sequence[str]
    silent: Sequence[str]


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
    near, far = _find_goal(subject, two), _find_goal(subject, batch)
    # Two labels that are close together leave almost no loss to compare with.
    small = _find_best_fit(subject, two, near.floor + max(near.margin, far.margin))
    large = _find_best_fit(subject, batch, far.floor + far.margin)
    shown = f"2 examples: {small}; {rows} examples: {large}"
    curves: JsonValue = {
        name: [[float(step), loss] for step, loss in enumerate(fit.losses)]
        for name, fit in (("2 examples", small), (f"{rows} examples", large))
    }
    if small.learned and large.learned:
        return judge.passed(shown, **{CURVES: curves})
    if small.learned and _is_hard(subject, batch, large):
        return judge.passed(
            f"{shown}; a plain network does no better, as the examples are close in few columns",
            **{CURVES: curves},
        )
    play = _count_used_parameters(subject, batch)
    needed = PARAMETERS_PER_EXAMPLE * (FROZEN_MARGIN if play.frozen else 1)
    if small.learned and play.numbers < needed * rows:
        return judge.warned(
            shown,
            hint=f"only {play.numbers} parameters get a gradient, too few to memorise {rows} "
            "examples; show that a larger model can",
            **{CURVES: curves},
        )
    if small.is_close(near.floor) and large.is_close(far.floor):
        return judge.warned(
            shown,
            hint="it comes close and no further: examples that are alike may have different "
            f"labels, or the loss has a floor; {play.numbers} parameters are in play",
            **{CURVES: curves},
        )
    return judge.failed(
        shown,
        hint=_explain(play, large if small.learned else small, settings),
        **{CURVES: curves},
    )


def _explain(play: _UsedParameters, fit: Fit, settings: SkeletonSection) -> str:
    """Return why a batch was not learned: no gradient, wrong sign, no capacity, or the model."""
    rates = ", ".join(f"{rate:g}" for rate in settings.learning_rates)
    if not play.has_graph:
        return (
            "the loss has no gradient: look for detach(), .data, no_grad, numpy or argmax between "
            "the parameters and the loss"
        )
    if not play.numbers:
        return f"no parameter gets a gradient; frozen: {_shorten_names(play.frozen)}"
    first, best = fit.losses[0], min(fit.losses)
    frozen = f"; frozen: {_shorten_names(play.frozen)}" if play.frozen else ""
    silent = f"; without gradient: {_shorten_names(play.silent)}" if play.silent else ""
    if not math.isfinite(fit.losses[-1]):
        return (
            f"the loss becomes NaN or infinite at every learning rate of {rates}: look at its "
            "logarithms, roots and divisions"
        )
    if best > 0.99 * first:
        return (
            f"the loss does not fall at any learning rate of {rates}: its sign is wrong, or the "
            f"inputs do not distinguish the examples{frozen}{silent}"
        )
    return (
        f"the loss falls to {best / first:.0%} of its start and no further at every learning rate "
        f"of {rates}, so the optimizer is not the cause: look for inputs that do not distinguish "
        f"the examples, and for dead or detached units; {play.numbers} parameters get a gradient"
        f"{frozen}{silent}"
    )


def _find_goal(subject: Subject, batch: Batch) -> _Goal:
    settings = subject.settings
    output = compute_output(subject, batch)
    free = find_free_outputs(subject, output, batch)
    # Measured above the floor of the loss, which `loss_floor` checks.
    floor = max(free.floor, _measure_prefix_floor(subject, output, batch))
    if floor >= 0:
        compared = free.constant_loss if free.is_bound else free.model_loss
        return _Goal(floor, TOLERANCE * max(compared - floor, 0.0))
    # Densities narrow without end: the target is the loss that as many steps on the outputs
    # reach, or a variance of the error (half the loss is its logarithm) of the tolerated share.
    rate = max(settings.learning_rates)
    floor = reach_loss_by_steps(subject, output, batch, settings.overfit_steps, rate)
    room = max(free.constant_loss - floor, 0.0)
    narrow = room - 0.5 * math.log(1 / TOLERANCE)
    return _Goal(floor, max(TOLERANCE * room, narrow))


def _find_best_fit(subject: Subject, batch: Batch, target: float) -> Fit:
    """Return the fit at the first learning rate that learns the batch, else the lowest one."""
    fit = _fit(subject, batch, target, subject.build_model)
    if not fit.learned and is_trained_otherwise(subject.task):
        other = _fit(subject, batch, target, subject.build_model, as_trained=True)
        fit = other if other.learned else fit
    return fit


def _measure_prefix_floor(subject: Subject, output: Tensor, batch: Batch) -> float:
    """Return the least loss of texts with common prefixes, from the shares of the next tokens."""
    found = find_target_offset(subject, batch)
    if isinstance(found, str) or found.offset != 1:
        return -math.inf
    tokens, wanted = batch[found.tokens], found.wanted
    scores = torch.full_like(output, math.log(UNSEEN_SHARE))
    for place in range(tokens.shape[1]):
        _, group = torch.unique(tokens[:, : place + 1], dim=0, return_inverse=True)
        counts = torch.zeros(int(group.max()) + 1, output.shape[-1])
        rows = (wanted[:, place] >= 0).nonzero().flatten()
        counts.index_put_(
            (group[rows], wanted[rows, place]), torch.ones(len(rows)), accumulate=True
        )
        shares = counts / counts.sum(dim=1, keepdim=True).clamp_min(1)
        scores[:, place] = shares.clamp_min(UNSEEN_SHARE).log()[group].to(output.dtype)
    return float(compute_mean_loss(subject.task.losses(scores.log_softmax(dim=-1), batch), batch))


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
    model, losses = simplify(build_model()), []
    batches = repeat(batch, steps + 1)
    for loss in updates(subject.task, model, batches, rate, as_trained=as_trained):
        losses.append(float(loss.detach()))
        if losses[-1] <= target and not as_trained:
            break
    is_right = _is_right(subject, simplify(model), batch)
    if as_trained:
        losses = [*losses[:1], _format_measured(subject.task, model, batch)]
    return Fit(losses, target, is_right)


def _format_measured(task: Task, model: nn.Module, batch: Batch) -> float:
    with torch.no_grad():
        return float(compute_mean_loss(task.losses(model(**inputs_of(batch)), batch), batch))


def _is_right(subject: Subject, model: nn.Module, batch: Batch) -> bool:
    """Whether all labels of the batch are predicted."""
    task, labels = subject.task, batch[LABEL].double()
    if task.kind == "statistic":
        return False
    with torch.no_grad():
        predicted = task.predict(model(**inputs_of(batch))).double()
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


def _count_used_parameters(subject: Subject, batch: Batch) -> _UsedParameters:
    model = simplify(subject.build_model())
    named = dict(model.named_parameters())
    frozen = [name for name, each in named.items() if not each.requires_grad]
    trainable = {name: each for name, each in named.items() if each.requires_grad}
    loss = compute_mean_loss(subject.task.losses(model(**inputs_of(batch)), batch), batch)
    if not trainable or not loss.requires_grad:
        return _UsedParameters(loss.requires_grad or not trainable, 0, frozen, list(trainable))
    gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    counts = [0 if each is None else int((each != 0).sum()) for each in gradients]
    silent = [name for name, count in zip(trainable, counts, strict=True) if not count]
    return _UsedParameters(True, sum(counts), frozen, silent)


def _shorten_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
