"""Find columns of outputs, as quantiles, that a metric reads otherwise than the loss."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import find_best_outputs, probe
from perennial.check_skeleton.made_up_inputs import RefusedInputsError
from perennial.check_skeleton.subject import Subject
from perennial.engine.evaluation.scoring import take_one_each
from perennial.engine.task import LABEL, WEIGHT, Batch, Task

MOST_COLUMNS = 12
# Of the statistic: a mean is not the median, so that two losses differ by some percent.
BETTER = 0.1
# Of the slope in the loss's order: in the right one, the statistic has its own minimum.
FLAT = 0.2
# Of the error of the best constants. A mean is off by 2% of the median's absolute error, a first
# decile by 11% and more.
CLOSER = 0.08


def describe_exchanged_outputs(subject: Subject) -> str:
    """Say in which order a task's statistic wants the columns of outputs; empty if in the loss's.

    The best constant outputs differ by column, as the tenth and the ninetieth percentile do. Where
    a statistic, to be minimised, has its own minimum at the same numbers in another order, it reads
    other places than the loss writes.
    """
    task, batch = subject.task, probe(subject)
    constant = find_best_outputs(subject).constant.detach()
    width = constant.shape[-1]
    is_minimised = next(iter(task.metrics.values())) == "minimize"
    if constant.ndim < 2 or not 2 <= width <= MOST_COLUMNS or not is_minimised:
        return ""
    found = _measure(task, constant, batch)
    if found is None:
        return ""
    value, slope = found
    for order in _list_orders(width):
        moved = _measure(task, constant[..., order], batch)
        if moved and value - moved[0] > BETTER * abs(value) and moved[1] < FLAT * slope:
            return (
                f"the statistic is {value:.4g} for the best constant outputs, and {moved[0]:.4g} "
                f"with their columns in the order {order}"
            )
    return ""


def describe_other_column(subject: Subject) -> str:
    """Describe a metric that reads one column of the outputs alone where another has less error.

    As the first of three quantiles in place of the median: each column of the best constant output
    takes the place of all others in turn.
    """
    task, batch = subject.task, probe(subject)
    if task.kind not in ("regression", "statistic") or task.scored_together > 1:
        return ""
    try:
        constant = find_best_outputs(subject).constant.detach()
    except RefusedInputsError:  # the loss takes none but a model's outputs: see `predictions`
        return ""
    if constant.ndim < 2 or not 2 <= constant.shape[-1] <= MOST_COLUMNS:
        return ""
    own = _score(task, constant, batch)
    alone = [
        _score(task, constant[..., [column]].expand_as(constant).contiguous(), batch)
        for column in range(constant.shape[-1])
    ]
    for name, value in own.items():
        found = np.array([scores.get(name, np.nan) for scores in alone])
        read = np.flatnonzero(found == value)
        is_error = task.metrics.get(name) == "minimize" and np.isfinite(found).all() and value > 0
        if len(read) == 1 and is_error and found.min() < (1 - CLOSER) * value:
            return (
                f"{name} reads column {read[0]} of the outputs alone: it is {value:.4g} for the "
                f"loss's best constants, and {found.min():.4g} by column {found.argmin()}"
            )
    return ""


def _score(task: Task, constant: Tensor, batch: Batch) -> dict[str, float]:
    """Return the metrics of one output for all rows."""
    outputs = constant.expand(len(batch[LABEL]), *constant.shape[1:])
    with torch.no_grad():
        if task.kind == "regression":
            labels = take_one_each(batch[LABEL]).double().numpy()
            return task.score(task.predict(outputs).double().numpy(), labels)
        weights = batch[WEIGHT].double().numpy() if WEIGHT in batch else np.ones(len(outputs))
        return task.score(task.statistic(outputs, batch).double().numpy(), weights)


def _measure(task: Task, constant: Tensor, batch: Batch) -> tuple[float, float] | None:
    """Return the mean statistic of constant outputs, and its slope; None of counts and of several.

    Of what is counted, as by an argmax, the commonest answer need not be the best.
    """
    held = constant.clone().requires_grad_()
    outputs = held.expand(len(batch[LABEL]), *held.shape[1:])
    statistic = task.statistic(outputs, batch)
    if not statistic.requires_grad or statistic.numel() != len(outputs):
        return None
    mean = statistic.mean()
    (gradient,) = torch.autograd.grad(mean, held)
    return float(mean.detach()), float(gradient.norm())


def _list_orders(width: int) -> Iterator[list[int]]:
    """Yield the reversed order, those with two columns exchanged, and rotations."""
    places = list(range(width))
    yield places[::-1]
    for one, other in combinations(places, 2):
        order = list(places)
        order[one], order[other] = other, one
        yield order
    for shift in range(1, width):
        yield [*places[shift:], *places[:shift]]
