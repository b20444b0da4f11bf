"""Retrieval: how early do the right answers of a query come among its candidates?

A task names `ahead` and `tied` of each right answer: how many candidates score higher than it, and
how many as high, it included. Named with `gain` as a third, they are the right answers of one
query, worth more or less; a gain of 0 leaves a place empty where a query has fewer. Without `gain`,
each is the one right answer to a question of its own, as picture to text and text to picture are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.contracts.errors import BadTaskError
from perennial.engine.metrics.metric import (
    STATISTIC,
    Floats,
    Groups,
    Metric,
    added,
    first_by_second,
)

Integers: TypeAlias = NDArray[np.int64]
Gain: TypeAlias = Callable[[Floats], Floats]
"""Ranks, from 1 → what a right answer is worth there."""


@dataclass(frozen=True)
class Levels:
    """Right answers by query and score; those of one query with equal scores are one level.

    Attributes:
        query: Of each of L levels, ascending, shape [L].
        ahead: Candidates with a higher score, ascending within a query, shape [L].
        tied: Candidates with this score, shape [L].
        right: Right answers among these, shape [L].
        gain: The sum of theirs, shape [L].
        before: Right answers of the query at higher scores, shape [L].
        gains: Of each query's right answers, the largest first, then 0, shape [Q, R].
    """

    query: Integers
    ahead: Integers
    tied: Integers
    right: Integers
    gain: Floats
    before: Integers
    gains: Floats

    def of_queries(self, values: Floats) -> Floats:
        """Return the sum of each query's levels, shape [Q]."""
        return np.bincount(self.query, weights=values, minlength=len(self.gains)).astype(np.float64)

    def expected(self, worth: Gain) -> Floats:
        """Return the mean over all places that a level's candidates share, shape [L]."""
        ranks = np.arange(1, int((self.ahead + self.tied).max(initial=0)) + 1, dtype=np.float64)
        total = np.concatenate([[0.0], np.cumsum(worth(ranks))])
        return np.asarray((total[self.ahead + self.tied] - total[self.ahead]) / self.tied)


PerQuery: TypeAlias = Callable[[Levels], Floats]
"""Levels → the metric of each query [Q], of those that have a right answer."""


def recall_at(k: int) -> Metric:
    """Compute the share of the right answers that is among the first k."""
    return _retrieval(
        f"recall_at_{k}",
        "Share of a query's right answers that are among the first K, averaged over queries.",
        lambda levels: _right_among(k, levels) / _answers(levels),
    )


def precision_at(k: int) -> Metric:
    """Compute the share of the first k that is right."""
    return _retrieval(
        f"precision_at_{k}",
        "Right answers among the first K divided by K, averaged over queries.",
        lambda levels: _right_among(k, levels) / k,
    )


def ndcg_at(k: int) -> Metric:
    """Compute how early the right answers come among the first k, by gain and discount."""

    def discount(ranks: Floats) -> Floats:
        return np.where(ranks <= k, 1.0 / np.log2(1.0 + ranks), 0.0)

    def per_query(levels: Levels) -> Floats:
        ideal = levels.gains @ discount(np.arange(1.0, levels.gains.shape[1] + 1))
        found = levels.of_queries(levels.gain * levels.expected(discount))
        return found / np.where(ideal > 0, ideal, 1.0)

    return _retrieval(
        f"ndcg_at_{k}",
        "Sum of gain / log2(1 + rank) over a query's right answers among the first K, relative to "
        "the best order's, averaged over queries (Järvelin and Kekäläinen, 2002). Gains are used "
        "as the task gives them; the task itself applies 2^grade - 1 (Burges et al., 2005).",
        per_query,
    )


def mean_reciprocal_rank() -> Metric:
    """Compute how early the first right answer comes."""
    return _retrieval(
        "mean_reciprocal_rank", "Mean of 1 / rank of a query's first right answer.", _reciprocal
    )


def mean_average_precision() -> Metric:
    """Compute how right the answers are, up to each right one."""
    return _retrieval(
        "mean_average_precision",
        "Precision at the rank of each right answer, averaged over the query's right answers and "
        "over queries.",
        lambda levels: levels.of_queries(levels.right * _precisions(levels)) / _answers(levels),
    )


def _retrieval(name: str, meaning: str, per_query: PerQuery) -> Metric:
    """Compute a metric of right answers' ranks, expected over random orders of equal scores."""

    def sums(statistics: Floats, weights: Floats, groups: Groups) -> Floats:
        rows, places, columns = statistics.shape
        sides, table = 1, statistics
        if columns == 2:  # without gain: every right answer alone
            sides, table = places, np.ones((rows * places, 1, 3))
            table[:, 0, :2] = statistics.reshape(rows * places, 2)
        levels = _levels(name, table)
        known = levels.gains[:, 0] > 0
        values = np.where(known, per_query(levels), 0.0).reshape(rows, sides).mean(axis=1)
        counted = np.where(known.reshape(rows, sides).all(axis=1), weights, 0.0)
        return np.stack([added(counted * values, groups), added(counted, groups)], axis=-1)

    return Metric(
        name, "maximize", STATISTIC,
        f"{meaning} Ties are averaged over all orders (McSherry and Najork, 2008); queries without "
        "a right answer are left out.",
        "an example with a right answer", sums, first_by_second,
        statistics=("ahead", "tied"), optional=("gain",),
    )  # fmt: skip


def _right_among(k: int, levels: Levels) -> Floats:
    """Count the right answers among the first k of each query, shape [Q]."""
    shares = levels.expected(lambda ranks: np.where(ranks <= k, 1.0, 0.0))
    return levels.of_queries(levels.right * shares)


def _answers(levels: Levels) -> Floats:
    """Count the right answers of each query; at least 1, to divide by."""
    return np.asarray(np.maximum((levels.gains > 0).sum(axis=1), 1), dtype=np.float64)


def _reciprocal(levels: Levels) -> Floats:
    """Average 1 / rank of one right answer; of several, that of the first one."""
    values = levels.expected(np.reciprocal)
    several = np.flatnonzero((levels.before == 0) & (levels.right > 1))
    kinds = np.stack([levels.ahead, levels.tied, levels.right], axis=1)[several]
    different, which = np.unique(kinds, axis=0, return_inverse=True)
    means = [_first_of_several(*map(int, kind)) for kind in different]
    values[several] = np.array(means)[which.reshape(-1)] if means else 0.0
    return levels.of_queries(np.where(levels.before == 0, values, 0.0))


def _first_of_several(ahead: int, tied: int, right: int) -> float:
    """Mean of 1 / rank of the first right one among tied candidates in random order."""
    places = np.arange(1.0, tied - right + 2)
    # It comes later by one place where the place before holds a wrong one: a product of shares.
    later = (tied - right - places[:-1] + 1) / (tied - places[:-1])
    chances = right / tied * np.concatenate([[1.0], np.cumprod(later)])
    return float(chances @ (1.0 / (ahead + places)))


def _precisions(levels: Levels) -> Floats:
    """Mean share that is right up to a right answer of each level, shape [L].

    At the j-th of t tied places, r of them right, (j - 1)(r - 1) / (t - 1) of those before are
    right on average, beside those of higher scores.
    """
    ahead, tied, right = levels.ahead, levels.tied, levels.right
    inverse = tied * levels.expected(np.reciprocal)
    among = (right - 1) / np.maximum(tied - 1, 1)
    return np.asarray(
        ((levels.before + 1) * inverse + among * (tied - (ahead + 1) * inverse)) / tied
    )


def _levels(name: str, table: Floats) -> Levels:
    """Group right answers, shape [Q, R, 3], by query and score.

    Raises:
        BadTaskError: no scores of candidates give such numbers.
    """
    ahead, tied = (np.rint(table[..., at]).astype(np.int64) for at in range(2))
    gains = table[..., 2]
    is_right = gains > 0
    asked = np.nonzero(is_right)[0].astype(np.int64)
    # By query and rank, so that the right answers of one level are neighbours.
    order = np.lexsort((ahead[is_right], asked))
    query, above, equal = (column[order] for column in (asked, ahead[is_right], tied[is_right]))
    gain = gains[is_right][order]
    is_first = np.ones(len(query), dtype=np.bool_)
    is_first[1:] = (np.diff(query) != 0) | (np.diff(above) != 0)
    starts = np.flatnonzero(is_first)
    right = np.diff(np.append(starts, len(query)))
    levels = Levels(
        query=query[starts], ahead=above[starts], tied=equal[starts], right=right,
        gain=np.add.reduceat(gain, starts) if len(starts) else gain,
        before=starts - np.searchsorted(query, query[starts]),
        gains=-np.sort(-gains, axis=1),
    )  # fmt: skip
    # No scores give negative ranks, one rank with different ties, more right answers than ties, or
    # levels that overlap.
    wrong = query[(above < 0) | (equal < 1) | (equal != np.repeat(levels.tied, right))]
    overlaps = (np.diff(levels.query) == 0) & (np.diff(levels.ahead) < levels.tied[:-1])
    wrong = [*wrong, *levels.query[right > levels.tied], *levels.query[1:][overlaps]]
    if wrong or (gains < 0).any():
        first = wrong[0] if wrong else np.nonzero((gains < 0).any(axis=1))[0][0]
        raise BadTaskError(
            f"{name} received impossible candidate counts",
            evidence="the right answers of an example are (ahead, tied, gain) "
            f"{', '.join(str(tuple(map(float, answer))) for answer in table[first])[:300]}",
            action="let `statistic` count how many candidates score higher than the right one "
            "(0 or more), and how many as high, the right one included (1 or more), and let no "
            "gain be below 0; `right_answers` in components/perennial/engine/metrics counts them",
        )
    return levels
