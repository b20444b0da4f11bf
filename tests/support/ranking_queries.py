"""Queries with several right answers of unequal worth, drawn and as a task, and rankings by other code."""

from itertools import permutations
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.metrics.right_answers import right_answers
from perennial.engine.task import LABEL, Task
from tiny_training import FEATURES, TinyTask

CANDIDATES, PLACES = 7, 4
GRADED = ("recall_at_3", "precision_at_3", "ndcg_at_3", "ndcg_at_9", "mean_reciprocal_rank",
          "mean_average_precision")  # fmt: skip


def drawn(queries: int, *, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    """Scores, minus infinity where a query has fewer candidates, and gains; some have no answer."""
    random = np.random.default_rng(queries)
    scores = random.normal(size=(queries, CANDIDATES))
    if tied:
        scores = np.round(scores)
    gains = np.zeros((queries, CANDIDATES))
    for row, (right, candidates) in enumerate(
        zip(random.integers(0, PLACES + 1, queries), random.integers(4, 8, queries), strict=True)
    ):
        chosen = random.permutation(candidates)[:right]
        gains[row, chosen] = random.choice([0.5, 1.0, 3.0, 7.0], right)
        scores[row, candidates:] = -np.inf
    gains[0, 0] = 3.0  # one at least
    return scores, gains


def statistics_of(scores: np.ndarray, gains: np.ndarray) -> np.ndarray:
    return right_answers(torch.from_numpy(scores), torch.from_numpy(gains), PLACES).numpy()


def by_definition(name: str, scores: np.ndarray, gains: np.ndarray) -> float:
    """A metric of one query by looking at every order that its ties allow."""
    there = np.isfinite(scores)
    scores, gains = scores[there], gains[there]
    order = np.argsort(-scores, kind="stable")
    levels = [order[scores[order] == score] for score in np.unique(scores)[::-1]]
    found = [[]]
    for level in levels:
        found = [[*start, *rest] for start in found for rest in permutations(level)]
    return float(np.mean([_of_order(name, gains[each]) for each in found]))


def _of_order(name: str, gains: np.ndarray) -> float:
    ranks, right = np.arange(1, len(gains) + 1), gains > 0
    k = int(name.rsplit("_", 1)[1]) if "_at_" in name else None
    if name.startswith("ndcg"):
        discounts = (ranks <= k) / np.log2(1 + ranks)
        return gains @ discounts / (np.sort(gains)[::-1] @ discounts)
    if name.startswith("recall"):
        return right[:k].sum() / right.sum()
    if name.startswith("precision"):
        return right[:k].sum() / k
    if name == "mean_reciprocal_rank":
        return 1 / ranks[right].min()
    return np.mean([right[:rank].mean() for rank in ranks[right]])


class Searching(TinyTask):
    """Each row asks which of its candidates fit: those whose number is near the row's `y`."""

    kind: Literal["statistic"] = "statistic"
    statistics = ("ahead", "tied", "gain") * PLACES
    metrics: ClassVar = directions_of("ndcg_at_3", "mean_average_precision", "precision_at_3")
    score = Task.score

    def encode(self, rows):
        batch = super().encode(rows)
        away = (batch[LABEL][:, None] - torch.linspace(-3, 3, CANDIDATES)).abs()
        return {**batch, LABEL: (2.0 - away).clamp_min(0.0).ceil()}

    def build_model(self):
        return Scores()

    def losses(self, output, batch):
        wanted = batch[LABEL] / batch[LABEL].sum(dim=1, keepdim=True).clamp_min(1)
        return -(wanted * output.log_softmax(dim=1)).sum(dim=1)

    def statistic(self, output, batch):
        return right_answers(output, batch[LABEL], PLACES)

    def blocks(self, model):
        return []


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(FEATURES, CANDIDATES)

    def forward(self, x):
        return self.scores(x)
