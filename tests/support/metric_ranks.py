"""Predictions for every metric, and what ranks do in the tests of metrics: add up their sums."""

import math

import numpy as np
import torch

from perennial.engine.metrics.catalogue import find_metric
from perennial.engine.metrics.metric import Metric, one_group
from perennial.engine.world.distributed import World
from ranking_queries import PLACES, drawn, statistics_of

STATISTICS = ("loss", "bytes", "ahead", "tied", "ahead", "tied")
RANKED = 4
LABELLED = ("micro_f1", "entity_f1", "exact_match", "token_accuracy")
FORECASTS = ("forecast_rmse", "forecast_mae", "forecast_pinball")


def reading(name: str) -> Metric:
    """The metric, with the columns of `made` where it reads statistics."""
    metric = find_metric(name)
    if not metric.statistics:
        return metric
    if name in (*LABELLED, *FORECASTS):
        return metric.reading(metric.statistics)
    language = (*STATISTICS[:2], "-", "-")
    return metric.reading(language if "loss" in metric.statistics else STATISTICS[2:])


def graded_reading(name: str) -> Metric:
    """The metric of several right answers, as `ranking_queries` draws them."""
    return find_metric(name).reading(("ahead", "tied", "gain") * PLACES)


def made(name: str, kind: str, rows: int, *, tied: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels, at least two classes among these."""
    random = np.random.default_rng(rows)
    if kind == "statistic":
        return _statistics(name, rows, random, tied), random.integers(1, 30, rows).astype(float)
    if kind == "regression":
        labels = 5.0 + random.normal(size=rows)
        predictions = labels + random.normal(size=rows)
        return (
            (np.round(predictions), np.round(labels, 1) + 0.05) if tied else (predictions, labels)
        )
    classes = 2 if kind == "binary" else 4
    labels = (np.arange(rows) % classes).astype(float)
    logits = random.normal(size=(rows, classes))
    logits[np.arange(rows), labels.astype(int)] += 1.0
    shares = np.exp(np.round(logits) if tied else logits)
    chances = shares / shares.sum(axis=1, keepdims=True)
    if kind == "binary":
        chances[1, :] = 0.1, 0.9  # of the first two rows, one is answered with the second class
        return chances[:, 1].copy(), labels
    return chances, labels


def _statistics(name: str, rows: int, random, tied: bool) -> np.ndarray:
    if name in ("mean_loss", "perplexity", "bits_per_byte"):
        return np.concatenate(
            [random.exponential(size=(rows, 1)), 1 + random.random((rows, 3))], axis=1
        )
    if name in FORECASTS:
        return random.exponential(size=(rows, 1)).round(1 if tied else 9)
    if name == "token_accuracy":
        return random.integers(0, 5, (rows, 1)) / 4
    if name == "exact_match":
        return random.integers(0, 2, (rows, 1)).astype(float)
    if name in ("micro_f1", "entity_f1"):
        labelled = random.integers(1, 5, (rows, 2))
        return np.column_stack([labelled.min(axis=1) - 1, labelled]).astype(float)
    ahead = random.integers(0, 9, (rows, 2))
    equal = random.integers(1, 5, (rows, 2)) if tied else np.ones((rows, 2))
    return np.stack([ahead, equal], axis=-1).reshape(rows, RANKED).astype(float)


def shard_of(rows: int, rank: int, size: int) -> slice:
    """Ragged parts: two thirds, nothing, and so on; the last has one row at least."""
    edges = [0, rows * 2 // 3, rows * 2 // 3, *[rows - 1] * (size - 3), rows]
    edges = edges if size > 2 else [0, 0, rows]
    return slice(edges[rank], edges[rank + 1])


def add_up_together(names: tuple[str, ...], *, graded: bool = False) -> int:
    """Each rank measures its part; what they add up to, or gather, is what one process finds."""
    world = World.join()
    for name in names:
        if graded:
            statistics = statistics_of(*drawn(500, tied=True))
            _add_up(world, graded_reading(name), statistics, made(name, "statistic", 500)[1])
            continue
        metric = reading(name)
        for kind in sorted(metric.kinds - ({"binary"} if name == "top_2_accuracy" else set())):
            _add_up(world, metric, *made(name, kind, 500, tied=True))
    world.barrier()
    return 0


def _add_up(world: World, metric: Metric, predictions: np.ndarray, labels: np.ndarray) -> None:
    part = shard_of(500, world.rank, world.size)
    mine = predictions[part], labels[part]
    expected = metric.measure(predictions, labels)
    if metric.sums is not None and metric.adds_up:
        sums = torch.from_numpy(metric.sums(*mine, one_group(mine[1])))
        found = float(metric.figure(world.sum(sums).numpy())[0])
        assert math.isclose(found, expected, rel_tol=1e-12), (metric.name, found, expected)
    parts = world.to_first(mine)
    if parts is not None:
        gathered = [np.concatenate(column) for column in zip(*parts, strict=True)]
        assert metric.measure(*gathered) == expected, metric.name
