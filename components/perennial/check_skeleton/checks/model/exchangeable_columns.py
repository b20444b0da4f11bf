"""Find columns that a model cannot tell apart although the label depends on which is which."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler
from torch import Tensor, nn

from perennial.check_skeleton.baselines import z_score
from perennial.check_skeleton.models import run_model
from perennial.check_skeleton.subject import Floats, Subject, is_sequence, select_head
from perennial.contracts.errors import join_names
from perennial.engine.task import LABEL, Batch, inputs_of

ROWS = 16
MOST_COLUMNS = 64
# Rounding moves an answer by about 1e-7 of the largest; sums in another order by a few times that.
SAME = 1e-5
CLEAR_ERRORS = 4.0
CLEARLY_WORSE = 1.02
KNOTS = 6
LEAST_CHANCE = 1e-3
# Of what the columns explain. A set whose first member counts half as much again loses 0.03;
# columns that share a network by mistake lost 0.45 and more.
MOST_LOST = 0.25


class Column(NamedTuple):
    """One number per example: a tensor [B] or [B, 1], or a column of a tensor [B, C]."""

    name: str
    place: int | None

    def __str__(self) -> str:
        return self.name if self.place is None else f"{self.name}[{self.place}]"


@dataclass(frozen=True)
class Exchangeable:
    """Columns whose exchange changes no output, and mean losses of predictions by them."""

    columns: Sequence[Column]
    own: float  # of curves of each column
    mixed: float  # of curves of the numbers in sorted order
    constant: float  # of a constant

    @property
    def is_mistake(self) -> bool:
        """Whether much is lost; a network is shared on purpose where members differ little."""
        return self.mixed - self.own > MOST_LOST * (self.constant - self.own)

    def __str__(self) -> str:
        return (
            f"{join_names([str(each) for each in self.columns])}, but curves of each one predict "
            f"the label with a loss of {self.own:.4g}, and {self.mixed:.4g} if it is unknown which "
            "is which"
        )


def find_exchangeable_columns(subject: Subject, model: nn.Module) -> Exchangeable | None:
    """Find columns whose exchange changes no output and makes labels harder to predict.

    The outputs of networks with weights for each column depend on which number is in which. Those
    of a set do not, and then its labels do not either.
    """
    batch = select_head(subject.train, ROWS)
    columns = _list_columns(batch)
    if not 2 <= len(columns) <= MOST_COLUMNS or subject.task.scored_together > 1:
        return None
    try:
        groups = _group_by_gradient(model, batch, columns)
        found = [each for each in groups if _is_exchangeable(model, batch, each)]
    except Exception:  # equal numbers, or no gradient, are not possible in every model
        return None
    measured = (_measure_value_of_order(subject, group) for group in found)
    return next((each for each in measured if each is not None), None)


def _list_columns(batch: Batch) -> list[Column]:
    columns = list[Column]()
    for name, tensor in inputs_of(batch).items():
        if not tensor.is_floating_point() or is_sequence(name, batch):
            continue
        if tensor[0].numel() == 1:
            columns.append(Column(name, None))
        elif tensor.ndim == 2:
            columns += [Column(name, place) for place in range(tensor.shape[1])]
    return columns


def _read(batch: Batch, columns: Sequence[Column]) -> Tensor:
    """Return the values of columns, [B, columns]."""
    return torch.stack(
        [
            batch[each.name].reshape(len(batch[each.name]), -1)[:, each.place or 0]
            for each in columns
        ],
        dim=1,
    )


def _write(batch: Batch, columns: Sequence[Column], values: Tensor) -> Batch:
    """Return the batch with other values, [B, columns], in these columns."""
    changed = dict(batch)
    for each, value in zip(columns, values.unbind(1), strict=True):
        tensor = changed[each.name]
        if each.place is None:
            changed[each.name] = value.reshape(tensor.shape)
        else:
            parts = list(tensor.unbind(1))
            parts[each.place] = value
            changed[each.name] = torch.stack(parts, dim=1)
    return changed


def _group_by_gradient(
    model: nn.Module, batch: Batch, columns: Sequence[Column]
) -> list[list[Column]]:
    """Return groups of columns whose gradients are equal where all columns have equal values.

    No two exchangeable columns are in different groups; columns without a gradient are in none.
    """
    level = _read(batch, columns).mean(dim=1, keepdim=True)
    values = level.expand(-1, len(columns)).clone().requires_grad_()
    output = model(**inputs_of(_write(batch, columns, values)))
    weights = torch.linspace(1.0, 2.0, output[0].numel()).reshape(output.shape[1:])
    (gradient,) = torch.autograd.grad((output * weights).sum(), values)
    groups: list[list[Column]] = []
    firsts: list[Tensor] = []
    for column, own in zip(columns, gradient.unbind(1), strict=True):
        if not bool((own != 0).any()):
            continue
        same = (n for n, each in enumerate(firsts) if torch.allclose(own, each, rtol=1e-3, atol=0))
        place = next(same, len(groups))
        if place == len(groups):
            groups.append([])
            firsts.append(own)
        groups[place].append(column)
    return [group for group in groups if len(group) > 1]


def _is_exchangeable(model: nn.Module, batch: Batch, group: Sequence[Column]) -> bool:
    """Whether no output changes when any two neighbours of the group exchange their values."""
    before = run_model(model, batch)
    for pair in pairwise(group):
        values = _read(batch, pair)
        after = run_model(model, _write(batch, pair, values.flip(1)))
        moved = (after - before).abs().max()
        if torch.equal(values, values.flip(1)) or moved > SAME * before.abs().max():
            return False
    return True


def _measure_value_of_order(subject: Subject, group: Sequence[Column]) -> Exchangeable | None:
    """Measure how much worse curves of the group's numbers fit in sorted order; None if not.

    Sorted numbers are all that a model can use that does not tell the columns apart.
    """
    if subject.task.kind == "statistic" or subject.train[LABEL].ndim > 1:
        return None
    sides = [_read(each, group).double() for each in (subject.train, subject.validation)]
    if not all(bool(each.isfinite().all()) for each in sides):
        return None
    is_number = subject.task.kind == "regression"
    curves = make_pipeline(
        StandardScaler(),
        SplineTransformer(n_knots=KNOTS, knots="quantile", extrapolation="constant"),
        Ridge() if is_number else LogisticRegression(max_iter=200),
    )
    none = DummyRegressor() if is_number else DummyClassifier()
    plain, ordered = sides, [each.sort(dim=1).values for each in sides]
    own, mixed, constant = (
        _compute_losses(subject, model, *(each.numpy() for each in numbers))
        for model, numbers in ((curves, plain), (curves, ordered), (none, plain))
    )
    if not mixed.mean() > CLEARLY_WORSE * own.mean() or z_score(mixed - own) < CLEAR_ERRORS:
        return None
    return Exchangeable(group, *(float(each.mean()) for each in (own, mixed, constant)))


def _compute_losses(
    subject: Subject, model: BaseEstimator, train: Floats, validation: Floats
) -> Floats:
    """Return squared errors, or log losses, [N], of a model that is fitted on the first rows."""
    labels, truth = (each[LABEL].double().numpy() for each in (subject.train, subject.validation))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # curves need not be fitted to the last digit
        model.fit(train, labels)
    if subject.task.kind == "regression":
        return np.asarray((model.predict(validation) - truth) ** 2)
    places = {code: place for place, code in enumerate(model.classes_)}
    chances = model.predict_proba(validation)
    own = [chances[row, places[code]] if code in places else 0.0 for row, code in enumerate(truth)]
    return np.asarray(-np.log(np.clip(own, LEAST_CHANCE, 1.0)))
