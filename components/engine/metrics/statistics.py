"""Statistics: figures of tasks that measure examples, from the columns that they name.

A language model names `loss` and `bytes`, each per token. A retrieval model names `ahead` and
`tied`: how many candidates score higher than the right one, and how many as high, it included.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from components.contracts.errors import BadTaskError
from components.engine.metrics.metric import (
    Floats,
    Groups,
    Kind,
    Metric,
    Sums,
    added,
    first_by_second,
    ratio,
)

STATISTIC: frozenset[Kind] = frozenset({"statistic"})
TARGET = ("ahead", "tied")
LARGEST_EXPONENT = 700.0  # beyond it a float64 overflows
Gain: TypeAlias = Callable[[Floats], Floats]
"""Ranks, from 1 → what the right answer is worth there."""


def language_metrics() -> tuple[Metric, ...]:
    """Those of a loss per token, averaged over tokens: examples count by their weight."""
    return (
        Metric(
            "perplexity", "minimize", STATISTIC,
            "Exponential of the mean loss of a token; compares only under one vocabulary.",
            "a token", _weighted("loss"), _perplexity, statistics=("loss",),
        ),
        Metric(
            "bits_per_byte", "minimize", STATISTIC,
            "Loss of all tokens in bits, divided by the bytes of the raw text (UTF-8) that they "
            "spell; compares under any vocabulary.",
            "a byte of text", _weighted("loss", "bytes"), _bits_per_byte,
            statistics=("loss", "bytes"),
        ),
    )  # fmt: skip


def recall_at(k: int) -> Metric:
    """Whether the right answer is among the first k."""
    return _target(
        f"recall_at_{k}", "Share of examples whose right answer is among the first K.",
        lambda ranks: (ranks <= k).astype(np.float64),
    )  # fmt: skip


def ndcg_at(k: int) -> Metric:
    """How early the right answer comes among the first k, discounted by the logarithm."""
    return _target(
        f"ndcg_at_{k}",
        "Mean of 1 / log2(1 + rank) of the right answer, 0 behind the first K (Järvelin and "
        "Kekäläinen, 2002).",
        lambda ranks: np.where(ranks <= k, 1.0 / np.log2(1.0 + ranks), 0.0),
    )  # fmt: skip


def mean_reciprocal_rank() -> Metric:
    """How early the right answer comes."""
    return _target("mean_reciprocal_rank", "Mean of 1 / rank of the right answer.", np.reciprocal)


def _target(name: str, meaning: str, gain: Gain) -> Metric:
    """A metric of the rank of one right answer, expected over random orders of equal scores."""

    def sums(statistics: Floats, weights: Floats, groups: Groups) -> Floats:
        ahead, tied = (np.rint(statistics[..., at]).astype(np.int64) for at in range(2))
        if (ahead < 0).any() or (tied < 1).any():
            raise BadTaskError(
                f"{name} reads numbers of candidates that cannot be",
                evidence=f"ahead is {ahead.min()} at least, tied {tied.min()}",
                action="let `statistic` count how many candidates score higher than the right one "
                "(0 or more), and how many as high, the right one included (1 or more)",
            )
        ranks = np.arange(1, int((ahead + tied).max(initial=1)) + 1, dtype=np.float64)
        worth = np.concatenate([[0.0], np.cumsum(gain(ranks))])
        expected = ((worth[ahead + tied] - worth[ahead]) / tied).mean(axis=1)
        return np.stack([added(weights * expected, groups), added(weights, groups)], axis=-1)

    return Metric(
        name, "maximize", STATISTIC,
        f"{meaning} Equal scores count by their mean over all orders (McSherry and Najork, 2008).",
        "an example", sums, first_by_second, statistics=TARGET,
    )  # fmt: skip


def _weighted(*names: str) -> Sums:
    """The weighted sum of each column, and the weights'."""

    def sums(statistics: Floats, weights: Floats, groups: Groups) -> Floats:
        means = statistics.mean(axis=1)
        columns = [weights * means[:, at] for at in range(len(names))]
        return np.stack([added(each, groups) for each in (*columns, weights)], axis=-1)

    return sums


def _perplexity(sums: Floats) -> Floats:
    return np.exp(np.minimum(first_by_second(sums), LARGEST_EXPONENT))


def _bits_per_byte(sums: Floats) -> Floats:
    return ratio(sums[..., 0] / np.log(2), sums[..., 1])
