"""Catalogue: finds metrics by name, for tasks, contracts and model comparisons."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from perennial.contracts.errors import BadTaskError
from perennial.contracts.training import Direction
from perennial.engine.metrics.classification import CLASSES, answer_metrics, top_accuracy
from perennial.engine.metrics.metric import Kind, Metric
from perennial.engine.metrics.probabilities import probability_metrics
from perennial.engine.metrics.ranking import ranking_metrics
from perennial.engine.metrics.regression import pinball, regression_metrics
from perennial.engine.metrics.retrieval import (
    mean_average_precision,
    mean_reciprocal_rank,
    ndcg_at,
    precision_at,
    recall_at,
)
from perennial.engine.metrics.statistics import statistic_metrics

_POSITIVE = r"([1-9]\d*)"
FAMILIES: Mapping[str, tuple[str, Callable[[str], Metric]]] = {
    "top_K_accuracy": (f"top_{_POSITIVE}_accuracy", lambda k: top_accuracy(int(k))),
    "pinball_Q": (r"pinball_([1-9]\d?(?:\.\d+)?|0\.\d*[1-9]\d*)", lambda q: pinball(float(q))),
    "recall_at_K": (f"recall_at_{_POSITIVE}", lambda k: recall_at(int(k))),
    "precision_at_K": (f"precision_at_{_POSITIVE}", lambda k: precision_at(int(k))),
    "ndcg_at_K": (f"ndcg_at_{_POSITIVE}", lambda k: ndcg_at(int(k))),
}
"""Name with a letter for its number → pattern, and how the metric is made of the number."""


@cache
def named_metrics() -> Mapping[str, Metric]:
    """Return all metrics whose name has no number."""
    every = (
        *answer_metrics(), *probability_metrics(), *ranking_metrics(), *regression_metrics(),
        *statistic_metrics(), mean_reciprocal_rank(),
        mean_average_precision(),
    )  # fmt: skip
    return {metric.name: metric for metric in every}


def find_metric(name: str) -> Metric | None:
    """Return the metric of a name; None if it is not in the catalogue, such as a task's own."""
    for pattern, made_of in FAMILIES.values():
        if number := re.fullmatch(pattern, name):
            return replace(made_of(number[1]), name=name)
    return named_metrics().get(name)


def directions_of(*names: str) -> dict[str, Direction]:
    """Return the value of a task's `metrics`: each name with its direction.

    Raises:
        BadTaskError: the catalogue has no such metric; the nearest is suggested.
    """
    return {name: _existing(name).direction for name in names}


def require_fit(
    names: Mapping[str, Direction], kind: Kind | None, statistics: Sequence[str], task: str
) -> None:
    """Check that a task of a kind can be measured by metrics of the catalogue.

    `kind` is None if it is known only later. Two and more classes count as one kind here,
    because a label shows only later how many there are.

    Raises:
        BadTaskError: it cannot, or it declares the other direction.
    """
    for name, direction in names.items():
        metric = _existing(name)
        kinds = metric.kinds | (CLASSES if metric.kinds & CLASSES and kind in CLASSES else set())
        if kind is not None and kind not in kinds:
            raise BadTaskError(
                f"{task} cannot be measured by {name!r}",
                evidence=f"its kind is {kind}; the metric is for {', '.join(sorted(metric.kinds))}",
                action=f"choose one of: {', '.join(_names_for(kind))}",
            )
        missing = sorted(set(metric.statistics) - set(statistics))
        if missing:
            raise BadTaskError(
                f"{task} cannot be measured by {name!r}",
                evidence=f"it needs the statistics {', '.join(metric.statistics)}; the task names "
                f"{', '.join(statistics) or 'none'}",
                action="choose another metric, or let the task's `statistic` return these numbers "
                "and name them in `statistics`",
            )
        numbers = {name: statistics.count(name) for name in metric.read_from(statistics)}
        if len(set(numbers.values())) > 1:
            raise BadTaskError(
                f"{task} does not repeat all of its statistics equally often",
                evidence=", ".join(f"{name} {times} times" for name, times in numbers.items()),
                action="name each once for every place, in the order of the columns, as in "
                '("ahead", "tied", "gain") * 3',
            )
        if direction != metric.direction:
            raise BadTaskError(
                f"{task} declares the direction {direction!r} for {name!r}",
                evidence=f"the catalogue's {name} has the direction {metric.direction!r}",
                action="correct the direction, or name your own metric differently",
            )


def _existing(name: str) -> Metric:
    metric = find_metric(name)
    if metric is not None:
        return metric
    every = [*named_metrics(), *FAMILIES]
    near = difflib.get_close_matches(name, every, n=1)
    raise BadTaskError(
        f"the catalogue of metrics has no {name!r}",
        evidence=f"it has {', '.join(every)}",
        action=f"write {near[0]!r}" if near else "choose one, or compute it in the task's `score`",
    )


def _names_for(kind: Kind) -> list[str]:
    families = {name: made_of("1") for name, (_, made_of) in FAMILIES.items()}
    every = {**named_metrics(), **families}
    return [name for name, metric in every.items() if kind in metric.kinds]
