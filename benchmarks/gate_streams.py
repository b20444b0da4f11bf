"""How often is the gate wrong on streams of days that are hard? Simulated, in a few minutes.

    python -m benchmarks.gate_streams [--trials 2000]

Each cell is a process of days in which no challenger is better: its days correlate, are skewed
(storms: many days a little better, few days much worse), heavy-tailed, follow a trend, or hardly
differ at all. `before` is the rule of 2026-11-20 on the same draws: the larger standard error of
single days and of pairs of adjacent ones. Power is measured at the improvement of which `before`
finds 80% on independent normal days.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.signal import lfilter
from scipy.sparse import csr_array, diags_array, vstack
from scipy.special import stdtrit
from scipy.stats import beta, norm, t

from perennial.contracts.gate import Repeats
from perennial.engine.evaluation.resampling import Blocks
from perennial.engine.evaluation.uncertainty import Estimate, Spread
from perennial.gate.config import GateSection
from perennial.gate.decision import effective_days_needed
from perennial.gate.repeats import spent_level

Floats: TypeAlias = NDArray[np.float64]
GATE = GateSection()
FEWER_DAYS = 7.0  # `min_effective_days` for days that are known to be independent
DAYS = (4, 9, 12, 18, 27, 40, 60)
CORRELATIONS = (0.0, 0.3, 0.6, 0.9)
FAMILY, CHAIN, MARGIN = 30, 14, 0.005
RARE_DAYS = ((9, 3.0), (9, 6.0), (18, 1.0), (18, 3.0), (27, 1.0), (27, 3.0), (60, 0.3), (60, 1.0))
BEFORE_PAIRS_FROM = 8
HELD_AT = 0.065
T_VALUES = np.r_[np.arange(1.2, 4.0, 0.2), np.arange(4.0, 8.0, 0.5), 9.0, 12.0]
SKEWNESSES = np.array([-0.5, -0.4, -0.33, -0.27, -0.2, -0.14, -0.08, 0.0, 0.1, 0.2])


@dataclass(frozen=True)
class Stream:
    """Improvements of one test's days, and what they add up to.

    Attributes:
        influences: Of each day, shape [days].
        value: The improvement on all rows.
        error: Its standard error if days were independent.
        rare: Rows of the rarer class, for ranking metrics; else None.
        rare_days: Days that hold one.
    """

    influences: Floats
    value: float
    error: float
    rare: int | None = None
    rare_days: int = 0


def correlated(random: np.random.Generator, correlation: float, shape: tuple[int, int]) -> Floats:
    """Normal days of an autoregressive process, [trials, days], with variance 1."""
    noise = random.normal(size=(shape[0], shape[1] + 100))
    scaled = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], noise)
    days: Floats = scaled[:, -shape[1] :]
    return days


def storms(days: Floats) -> Floats:
    """Many days a little better, few days much worse: an exponential distribution."""
    found: Floats = 1.0 + np.log(norm.sf(days))
    return found


def trend(days: Floats) -> Floats:
    """From worse to better over the test days, by two standard deviations."""
    return days + np.linspace(-1.0, 1.0, days.shape[1])


def mostly_equal(days: Floats) -> Floats:
    """Two models with equal answers on 99% of 200 rows a day: about two rows differ."""
    random = np.random.default_rng(days.shape[1])
    differing = random.binomial(200, 0.01, days.shape)
    return days * np.sqrt(differing)


SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "normal": lambda days: days,
    "storms": storms,
    "heavy tails (t3)": lambda days: t.ppf(norm.cdf(days), 3) / np.sqrt(3.0),
    "log-normal storms": lambda days: (np.exp(0.5) - np.exp(days)) / 2.16,
    "trend": trend,
    "99% equal": mostly_equal,
}


def streams(days: Floats) -> Iterator[Stream]:
    """Means of equal days."""
    for series in days:
        error = float(series.std(ddof=1)) / np.sqrt(len(series))
        yield Stream(series - series.mean(), float(series.mean()), error)


def lower_bound(stream: Stream, level: float, gate: GateSection = GATE) -> float:
    """What the gate judges by; minus infinity where it refuses to judge."""
    count = len(stream.influences)
    blocks = Blocks(np.arange(count), count, "day")
    found = Estimate.of(stream.value, stream.error, Spread.of(stream.influences, blocks))
    few = count < gate.min_test_blocks
    if stream.rare is not None:
        few |= stream.rare < gate.min_rare_rows or stream.rare_days < gate.min_rare_blocks
    needed = effective_days_needed(gate, Repeats(earlier=1, worth=1.0, level=level))
    if found.effective < needed or few:
        return -np.inf
    return found.interval(1.0 - level).low


def bound_before(stream: Stream, level: float) -> float:
    """The rule of 2026-11-20, in closed form."""
    away, count = stream.influences, len(stream.influences)
    if count < BEFORE_PAIRS_FROM:
        return stream.value - float(stdtrit(count - 1, 1 - level)) * stream.error
    neighbours = float((away * (away + np.roll(away, 1))).mean())
    paired = np.sqrt(max(neighbours, 0.0) / (count - 2))
    error = max(stream.error, paired)
    return stream.value - float(stdtrit(count / 2 - 1, 1 - level)) * error


def share_above(bounds: Floats, limit: float = 0.0) -> float:
    """Promotions."""
    return float((bounds > limit).mean())


def share_refused(bounds: Floats) -> float:
    """Tests that the gate does not judge."""
    return float(np.isneginf(bounds).mean())


def false_promotions(trials: int) -> Iterator[str]:
    """Days of every shape and correlation."""
    columns = " | ".join(f"AR {c:g}, before | now | not judged" for c in CORRELATIONS)
    yield f"| days | shape | {columns} |"
    yield "|---" * (2 + 3 * len(CORRELATIONS)) + "|"
    for count in DAYS:
        for name, shape in SHAPES.items():
            cells = []
            for correlation in CORRELATIONS:
                random = np.random.default_rng([count, int(10 * correlation)])
                found = list(streams(shape(correlated(random, correlation, (trials, count)))))
                before, now = (
                    np.array([rule(s, 0.05) for s in found]) for rule in (bound_before, lower_bound)
                )
                shares = share_above(before), share_above(now), share_refused(now)
                cells += [f"{share:.1%}" for share in shares]
            yield f"| {count} | {name} | {' | '.join(cells)} |"


def power(trials: int) -> Iterator[str]:
    """At the improvement of which `before` finds 80% on independent normal days."""
    fewer = GATE.model_copy(update={"min_effective_days": FEWER_DAYS})
    columns = " | ".join(
        f"AR {c:g}, before | now | now, {FEWER_DAYS:g} effective days" for c in (0.0, 0.3)
    )
    yield f"| days | improvement, in sd of a day | {columns} |"
    yield "|---" * 8 + "|"
    for count in DAYS[1:]:
        cells, effect = [], 0.0
        for correlation in (0.0, 0.3):
            random = np.random.default_rng([count, int(10 * correlation)])
            found = list(streams(correlated(random, correlation, (trials, count))))
            before = np.array([bound_before(s, 0.05) for s in found])
            effect = effect or -float(np.quantile(before, 0.2))
            cells.append(f"{share_above(before, -effect):.1%}")
            for gate in (GATE, fewer):
                now = np.array([lower_bound(s, 0.05, gate) for s in found])
                cells.append(f"{share_above(now, -effect):.1%}")
        yield f"| {count} | {effect:.2f} | {' | '.join(cells)} |"


def effective_days(trials: int) -> Iterator[str]:
    """Equal challengers that are promoted if fewer independent days are enough."""
    cells = ("log-normal storms", 0.0), ("99% equal", 0.6), ("99% equal", 0.9)
    columns = " | ".join(f"{name}, AR {c:g}" for name, c in cells)
    yield f"| days | `min_effective_days` | {columns} |"
    yield "|---" * (2 + len(cells)) + "|"
    for count, needed in product(DAYS[1:], (FEWER_DAYS, 10.0, GATE.min_effective_days)):
        gate, shares = GATE.model_copy(update={"min_effective_days": needed}), []
        for name, correlation in cells:
            random = np.random.default_rng([count, int(10 * correlation)])
            days = SHAPES[name](correlated(random, correlation, (trials, count)))
            now = np.array([lower_bound(s, 0.05, gate) for s in streams(days)])
            shares.append(f"{share_above(now):.1%}")
        yield f"| {count} | {needed:g} | {' | '.join(shares)} |"


def _binned(days: Floats, effect: float, correlations: Floats) -> Floats:
    """Return the share of tests by t, lag-one correlation and L-skewness, shape [T, C, S]."""
    count, away = days.shape[1], days - days.mean(axis=1, keepdims=True)
    t_value = (days.mean(axis=1) + effect) / days.std(axis=1, ddof=1) * np.sqrt(count)
    place, ordered = np.arange(count), np.sort(away)
    skewness = 3.0 * (ordered @ (place * (place - 1)) / (ordered @ place) / (count - 2) - 1.0)
    cells = [T_VALUES.searchsorted(t_value), correlations.searchsorted(_adjacent(away))]
    cells.append(SKEWNESSES.searchsorted(skewness))
    shape = len(T_VALUES) + 1, len(correlations) + 1, len(SKEWNESSES) + 1
    flat = np.ravel_multi_index(cells, shape)
    return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape) / len(days)


def _adjacent(away: Floats) -> Floats:
    found: Floats = (away[:, 1:] * away[:, :-1]).sum(axis=1) / (away**2).sum(axis=1)
    return found


def attainable(trials: int) -> Iterator[str]:
    """The most that any rule can find that holds all cells: a linear programme.

    Its rule knows the t value, the lag-one correlation and the L-skewness of the days, promotes
    more often the larger the t value, and is chosen on the same draws, which flatters it.
    """
    yield f"| days | improvement, in sd of a day | at most, all cells ≤ {HELD_AT:.1%} |"
    yield "|---|---|---|"
    for count in DAYS[1:5]:
        random = np.random.default_rng([count, 0])
        alone = correlated(random, 0.0, (trials // 10, count))  # those of the table above
        bounds = np.array([bound_before(s, 0.05) for s in streams(alone)])
        effect = -float(np.quantile(bounds, 0.2))
        alone = correlated(random, 0.0, (trials, count))
        away = alone - alone.mean(axis=1, keepdims=True)
        cuts = np.unique(np.quantile(_adjacent(away), np.linspace(0.05, 0.98, 14)))
        held = np.stack(
            [
                _binned(SHAPES[name](correlated(random, rho, (trials, count))), 0.0, cuts)
                for name, rho in product(SHAPES, CORRELATIONS)
            ]
        )
        found = _binned(alone, effect, cuts)
        held[:, 0], found[0] = 0.0, 0.0  # t values that no rule promotes
        size, step = found.size, found[0].size
        rising = diags_array([1.0, -1.0], offsets=[0, step], shape=(size - step, size))
        best = linprog(
            -found.ravel(),
            A_ub=vstack([csr_array(held.reshape(len(held), -1)), rising]),
            b_ub=np.r_[np.full(len(held), HELD_AT), np.zeros(size - step)],
            bounds=(0.0, 1.0),
        )
        yield f"| {count} | {effect:.2f} | {-best.fun:.1%} |"


def rare_stream(
    random: np.random.Generator, days: int, mean: float, ranking: bool, skewed: bool
) -> Stream:
    """Two models of equal ROC area or log loss at one positive in 1,000 rows.

    The area is the mean over positives of the share of negatives that they outrank. Skewed: the
    challenger's share is 1 or low, the champion's nearly always high.
    """
    positives = random.poisson(mean, days)
    positives[:2] = np.maximum(positives[:2], 1)
    total = int(positives.sum())
    both = random.normal(size=(2, total))
    both[1] = 0.7 * both[0] + np.sqrt(0.51) * both[1]
    if skewed:
        shares = beta.ppf(norm.cdf(both[0]), 1.8, 0.2), beta.ppf(norm.cdf(both[1]), 9, 1)
    else:
        shares = norm.cdf(1 + both[0]), norm.cdf(1 + both[1])
    gains = np.asarray(shares[0] - shares[1])
    if not ranking:  # the loss of a positive is minus the logarithm of its probability
        gains = np.log(shares[0].clip(1e-4)) - np.log(shares[1].clip(1e-4))
    sums = np.bincount(np.repeat(np.arange(days), positives), gains, days)
    rows = positives if ranking else np.full(days, 1000.0 * mean)
    value = float(sums.sum() / rows.sum())
    left = (sums.sum() - sums) / (rows.sum() - rows)
    draws = random.multinomial(days, np.full(days, 1 / days), 400)
    drawn = (draws @ sums) / np.maximum(draws @ rows, 1e-9)
    error = float(drawn.std(ddof=1)) * np.sqrt(days / (days - 1))
    held = int((positives > 0).sum())
    return Stream((days - 1) * (value - left), value, error, total if ranking else None, held)


def rare_positives(trials: int) -> Iterator[str]:
    """Ranking metrics and log loss at one positive in 1,000 rows."""
    yield "| metric | models | days | positives | before | now | now, if any number were allowed |"
    yield "|---|---|---|---|---|---|---|"
    for ranking, skewed in ((True, False), (True, True), (False, False)):
        for days, mean in RARE_DAYS:
            random = np.random.default_rng([days, int(10 * mean), ranking, skewed])
            found = [rare_stream(random, days, mean, ranking, skewed) for _ in range(trials)]
            before, now = (
                np.array([rule(s, 0.05) for s in found]) for rule in (bound_before, lower_bound)
            )
            free = [Stream(s.influences, s.value, s.error) for s in found]
            allowed = np.array([lower_bound(s, 0.05) for s in free])
            shares = " | ".join(f"{share_above(b):.1%}" for b in (before, now, allowed))
            name = "roc_auc" if ranking else "log_loss"
            kinds = "of other kinds" if skewed else "alike"
            yield f"| {name} | {kinds} | {days} | {days * mean:.0f} | {shares} |"


def families(trials: int) -> Iterator[str]:
    """Thirty equal challengers of one champion on the same days: families that promote any."""
    yield "| days | shape | AR | before | now | the first alone, now | judged of 30 |"
    yield "|---|---|---|---|---|---|---|"
    spent = [spent_level(0.05, number) for number in range(FAMILY)]
    for count in (9, 18, 27, 60):
        for name, correlation in (
            ("normal", 0.0), ("normal", 0.3), ("normal", 0.6), ("normal", 0.9), ("storms", 0.0),
            ("heavy tails (t3)", 0.0),
        ):  # fmt: skip
            random = np.random.default_rng([count, int(10 * correlation), 7])
            champion = correlated(random, correlation, (trials, count))
            wrong, judged = np.zeros((3, trials), dtype=bool), 0.0
            for number, level in enumerate(spent):
                own = correlated(random, correlation, (trials, count))
                found = list(streams(SHAPES[name](np.sqrt(0.5) * (champion + own))))
                bounds = np.array([lower_bound(s, level) for s in found])
                now, judged = bounds > 0, judged + 1.0 - share_refused(bounds)
                wrong[0] |= np.array([bound_before(s, 0.05) for s in found]) > 0
                wrong[1] |= now
                wrong[2] |= now if number == 0 else False
            shares = " | ".join(f"{share:.1%}" for share in wrong.mean(axis=1))
            yield f"| {count} | {name} | {correlation:g} | {shares} | {judged:.1f} |"


def chains(trials: int) -> Iterator[str]:
    """Fourteen challengers, each worse than the champion it meets, judged as not worse."""
    before_and_now = "promoted, before | now | champion worse by, before | now"
    yield f"| days | noise of a day | each worse by | {before_and_now} |"
    yield "|---|---|---|---|---|---|---|"
    for count, noise, step in product((27, 60), (0.005, 0.01), (0.002, 0.004)):
        found = np.array(
            [
                [_chain(np.random.default_rng([count, trial]), (count, noise, step), has_anchor)
                 for trial in range(trials)]
                for has_anchor in (False, True)
            ]
        )  # fmt: skip
        promoted = " | ".join(f"{mean:.1f} of {CHAIN}" for mean in found[:, :, 0].mean(axis=1))
        worse = " | ".join(
            f"{each.mean():.3f}, {np.quantile(each, 0.95):.3f} in one of 20"
            for each in found[:, :, 1]
        )
        yield f"| {count} | {noise:g} | {step:g} | {promoted} | {worse} |"


def _chain(
    random: np.random.Generator, stream: tuple[int, float, float], has_anchor: bool
) -> tuple[int, float]:
    """Promotions, and how much worse than the first the last champion is. New days every time."""
    count, noise, step = stream
    champion = anchor = 0.0
    promoted = 0
    for _ in range(CHAIN):
        challenger = champion - step
        own, theirs, first = random.normal(scale=noise / np.sqrt(2), size=(3, count))
        beside = next(streams((challenger - champion + own - theirs)[None]))
        bounds = [lower_bound(beside, 0.05)]
        if has_anchor and anchor != champion:
            bounds.append(
                lower_bound(next(streams((challenger - anchor + own - first)[None])), 0.05)
            )
        if min(bounds) <= -MARGIN:
            continue
        promoted, champion = promoted + 1, challenger
        anchor = challenger if bounds[0] > 0 else anchor  # shown to be better: a new record
    return promoted, -champion


def simulated_tables(trials: int) -> Iterator[str]:
    """All tables, as Markdown."""
    for title, lines in (
        ("Equal challengers that are promoted", false_promotions(trials)),
        ("True improvements that are promoted", power(trials)),
        ("Equal challengers that are promoted on fewer independent days", effective_days(trials)),
        ("The most that a rule by correlation and skewness can find", attainable(10 * trials)),
        ("One positive in 1,000 rows: equal challengers that are promoted", rare_positives(trials)),
        ("Families of thirty equal challengers that promote any", families(trials // 2)),
        (f"Fourteen challengers in a row, margin {MARGIN:g}, not worse", chains(trials // 4)),
    ):
        yield f"\n## {title}\n"
        yield from lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Measure how often the gate is wrong.")
    parser.add_argument("--trials", type=int, default=2000, help="of each cell")
    for line in simulated_tables(parser.parse_args().trials):
        print(line, flush=True)


if __name__ == "__main__":
    main()
