"""Confirmation: candidates trained again with fresh seeds, compared on rows nothing was chosen by.

The candidates were chosen among many trials, and the best of many is better by luck (the winner's
curse). Their confirmations are other trainings, measured on other rows: whatever chose the
candidates cannot have used them, so a plain interval of them holds, as after any sample splitting
(Cox, 1975). Of the search only the choice itself is left, which decides what is asked.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import stdtrit

from perennial.contracts.gate import Interval
from perennial.contracts.study import Confirmed, Decision
from perennial.engine.evaluation.resampling import Blocks, Counts
from perennial.engine.evaluation.uncertainty import Estimate
from perennial.gate.comparison import Conditions, estimate_of
from perennial.studies.analysis.search import Floats

MOST_CONFIRMATIONS = 1000


@dataclass(frozen=True)
class Measured:
    """A candidate's confirmations, of K seeds, on the test rows.

    Attributes:
        trial: Its number; 0 is the baseline.
        values: The metric of each, shape [K].
        draws: The metric of each on the bootstrap draws, shape [K, R].
        influences: The influence of each block on it, shape [K, B].
        diverged: Further confirmations that did not complete because of the hyperparameters.
    """

    trial: int
    values: Floats
    draws: Floats
    influences: Floats
    diverged: int = 0

    @property
    def seeds(self) -> int:
        """Return the number of confirmations that were measured."""
        return len(self.values)

    @property
    def seed_variance(self) -> float:
        """Return the variance of the mean over its seeds."""
        return float(self.values.var(ddof=1)) / self.seeds if self.seeds > 1 else math.inf

    @property
    def sampled_variance(self) -> float:
        """Return the part of `seed_variance` that the choice of the test rows explains.

        Two seeds err on different rows. Most of their difference on one test split comes from
        that, and would be another one on other rows (Jordan, 2023): the draws of the rows, which
        the blocks measure, contain it already.
        """
        count: int = self.influences.shape[1]
        if self.seeds < 2 or count < 2:
            return 0.0
        own: Floats = self.influences - self.influences.mean(axis=0)
        own = own - own.mean(axis=1, keepdims=True)
        return float((own**2).sum()) / (count * (count - 1)) / (self.seeds * (self.seeds - 1))


@dataclass(frozen=True)
class HeldOutRows:
    """Test rows that chose nothing: their blocks, draws and conditions."""

    blocks: Blocks
    draws: Counts
    conditions: Conditions | None = None


@dataclass(frozen=True)
class Difference:
    """One candidate's improvement over another, with both sources of its uncertainty.

    Attributes:
        data: By the blocks of the test rows.
        seed: Variance of each candidate's mean between seeds, with its degrees of freedom.
        sampled: What the blocks have of those already.
    """

    data: Estimate
    seed: tuple[tuple[float, float], ...]
    sampled: float

    @property
    def seed_part(self) -> float:
        """Return the variance that the seeds add to that of the data."""
        return max(sum(variance for variance, _ in self.seed) - self.sampled, 0.0)

    @property
    def error(self) -> float:
        """Return the standard error."""
        return math.sqrt(self.data.error**2 + self.seed_part)

    @property
    def degrees(self) -> float:
        """Return the degrees of freedom of the error (Satterthwaite, 1946).

        The seeds' variances count as far as the error has them: a rule chosen by simulation
        (benchmarks/results/study_decisions.md).
        """
        if not self.error or not math.isfinite(self.error):
            return self.data.degrees
        whole = sum(variance for variance, _ in self.seed)
        share = self.seed_part / whole if whole else 0.0
        parts = [self.data.error**4 / self.data.degrees]
        parts += [share * variance**2 / degrees for variance, degrees in self.seed if degrees]
        return max(self.error**4 / sum(parts), 1.0) if sum(parts) else self.data.degrees

    def with_confirmations(self, count: int, seeds: int) -> "Difference":
        """Return what is to be expected of another number of confirmations per candidate."""
        share = seeds / count
        # Only the part of the data's error that comes from the seeds shrinks with more of them.
        lasting = max(self.data.error**2 - self.sampled, 0.0)
        error = math.sqrt(lasting + self.sampled * share)
        seed = tuple((variance * share, count - 1.0) for variance, _ in self.seed)
        return Difference(replace(self.data, error=error), seed, self.sampled * share)

    def interval(self, confidence: float) -> Interval | None:
        """Return the two-sided interval; None where the test rows or seeds are too few for one."""
        if not math.isfinite(self.error):
            return None
        # Third moments add up as variances do, and the seeds' errors are taken for symmetric.
        share = (self.data.error / self.error) ** 3 if self.error else 0.0
        whole = Estimate(
            self.data.value, self.error, self.degrees, skewness=share * self.data.skewness
        )
        return whole.interval((1.0 + confidence) / 2.0)

    def confirmations_for(self, difference: float, confidence: float, seeds: int) -> int | None:
        """Return the confirmations per candidate whose interval excludes a difference.

        None if no number of them does, because the test rows are too few.
        """
        if difference <= 0.0 or not math.isfinite(self.error):
            return None

        def is_enough(count: int) -> bool:
            expected = self.with_confirmations(count, seeds)
            quantile = float(stdtrit(expected.degrees, (1.0 + confidence) / 2.0))
            return quantile * expected.error < difference

        counts = range(max(seeds, 2), MOST_CONFIRMATIONS)
        place = bisect_left(counts, True, key=is_enough)
        return counts[place] if place < len(counts) else None


def difference_of(ours: Measured, theirs: Measured, test: HeldOutRows, sign: float) -> Difference:
    """Return how much better one candidate is than another.

    `sign` is 1 where a higher metric is better, else -1.
    """
    value = sign * float(ours.values.mean() - theirs.values.mean())
    drawn = min(ours.draws.shape[1], theirs.draws.shape[1])
    draws = sign * (ours.draws[:, :drawn].mean(axis=0) - theirs.draws[:, :drawn].mean(axis=0))
    influences = sign * (ours.influences.mean(axis=0) - theirs.influences.mean(axis=0))
    data = estimate_of(value, (draws, influences), test.blocks, test.draws, test.conditions)
    both = (ours, theirs)
    return Difference(
        data=data,
        seed=tuple((each.seed_variance, each.seeds - 1.0) for each in both),
        sampled=sum(each.sampled_variance for each in both),
    )


def simultaneous(confidence: float, comparisons: int) -> float:
    """Return each comparison's confidence, such that all hold together (Šidák, 1967)."""
    return float(confidence ** (1.0 / max(comparisons, 1)))


def compare_candidates(
    pairs: Sequence[tuple[Measured, Measured]],
    test: HeldOutRows,
    *,
    sign: float,
    confidence: float,
    least: float = 0.0,
    searched: Mapping[tuple[int, int], float] | None = None,
) -> tuple[Confirmed, ...]:
    """Compare candidates in pairs, with intervals that hold for all pairs together.

    `adopt`: the improvement is certainly larger than `least`; `reject`: certainly smaller. All
    intervals together hold with `confidence`; `sign` is 1 where a higher metric is better, else -1;
    `searched` has the improvement that the search showed, by both trials.
    """
    each = simultaneous(confidence, len(pairs))
    found = []
    for ours, theirs in pairs:
        difference = difference_of(ours, theirs, test, sign)
        interval = difference.interval(each)
        decision = decide(interval, least)
        # A divergence has no value to average: it speaks against the candidate that has it.
        if ours.diverged and decision != "reject":
            decision = "reject" if not theirs.diverged else "inconclusive"
        needed, target = None, target_of(interval, least)
        if decision == "inconclusive" and not ours.diverged:
            seeds = min(ours.seeds, theirs.seeds)
            needed = difference.confirmations_for(target, each, seeds)
        found.append(
            Confirmed(
                trial=ours.trial,
                against=theirs.trial,
                test=float(ours.values.mean()),
                test_against=float(theirs.values.mean()),
                improvement=interval,
                seed_error=_finite(math.sqrt(difference.seed_part)),
                data_error=_finite(difference.data.error),
                degrees=difference.degrees,
                decision=decision,
                searched=(searched or {}).get((ours.trial, theirs.trial)),
                confirmations_needed=needed,
                diverged=tuple(each.trial for each in (ours, theirs) if each.diverged),
                text=_describe(ours, theirs, interval, needed, target),
            )
        )
    return tuple(found)


def decide(interval: Interval | None, least: float) -> Decision:
    """Return what an interval says about the smallest improvement worth a change."""
    if interval is None:
        return "inconclusive"
    if interval.low > least:
        return "adopt"
    return "reject" if interval.high < least else "inconclusive"


def target_of(interval: Interval | None, least: float) -> float:
    """Return the difference that further confirmations should be able to tell from none.

    Without a smallest one worth a change, the estimate, or half of what could be distinguished so
    far.
    """
    if least or interval is None:
        return least
    return max(abs(interval.estimate), (interval.high - interval.low) / 4.0)


def _describe(
    ours: Measured,
    theirs: Measured,
    interval: Interval | None,
    needed: int | None,
    target: float,
) -> str:
    if ours.diverged:
        whole = ours.seeds + ours.diverged
        return f"trial {ours.trial} diverged in {ours.diverged} of {whole} confirmations"
    if interval is None:
        return f"trial {ours.trial} has no interval: the test rows or confirmations are too few"
    name = f"trial {theirs.trial}" if theirs.trial else "the baseline"
    verb, found = "improves on", interval
    if interval.estimate < 0.0:
        verb = "is worse than"
        found = Interval(estimate=-interval.estimate, low=-interval.high, high=-interval.low)
    text = f"trial {ours.trial} {verb} {name} by {found.estimate:.3g}"
    text += f" [{found.low:.3g}, {found.high:.3g}]"
    # An estimate near `least` stays undecided, although the interval is narrow enough already.
    if needed is not None and needed > ours.seeds:
        text += f"; {needed - ours.seeds} more confirmations would settle {target:.2g}"
    return text


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def name_values(first: str, second: str, found: Confirmed, least: float, seeds: int) -> str:
    """Return the answer to a scientific question about two values, in a sentence."""
    interval = found.improvement
    if interval is None or (found.diverged and not found.is_clear):
        names = {found.trial: first, found.against: second}
        diverged = " and ".join(names[trial] for trial in found.diverged)
        why = f"{diverged} diverged in a confirmation" if diverged else found.text
        return f"{first} and {second}: inconclusive, {why}"
    if found.is_clear:
        better, worse = (first, second) if interval.low > 0.0 else (second, first)
        low, high = sorted((abs(interval.low), abs(interval.high)))
        return f"{better} is better than {worse}, by {low:.3g} to {high:.3g}"
    within = max(-interval.low, interval.high)
    if within == 0.0:
        return f"{first} and {second}: inconclusive, all confirmations are exactly alike"
    if within < least:
        return f"{first} and {second}: no difference worth {least:g}, it is within ±{within:.2g}"
    text = f"{first} and {second}: inconclusive, the difference is within ±{within:.2g}"
    settled = target_of(interval, least)
    if found.confirmations_needed is None:
        return f"{text}; no number of confirmations settles {settled:.2g}, only more test rows do"
    more = max(found.confirmations_needed - seeds, 1)
    return f"{text}; {more} more confirmation{'s' * (more > 1)} would settle {settled:.2g}"
