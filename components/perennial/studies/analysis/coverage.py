"""Coverage: does the search space hold the best values, and enough good trials?

The boundary check and the search for infeasible values are those of Google's Deep Learning Tuning
Playbook ("Identifying bad search space boundaries", "Not sampling enough points").
"""

import math
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from scipy.special import bdtrc
from scipy.stats import fisher_exact, t

from perennial.studies.analysis.search import Floats, Search, normal_scores, shown_value
from perennial.studies.findings import Boundary, GoodPoints, InfeasibleRegion
from perennial.studies.space import Axis

Accepts = Callable[[str, JsonValue], bool]
"""Whether the contract takes a value of an option."""
Side = Literal["low", "high"]

EDGE = 0.2
"""The outer share of a range that counts as its end."""
BEST_SHARE, FEWEST_BEST = 0.2, 4
"""The best fifth of the trials is looked at, but at least four."""
ENOUGH_TRIALS = 10
"""With fewer, no end of a range can be distinguished from chance."""
LEVEL = 0.05
LOG_REACH = math.log(100.0)
"""A range on a logarithmic scale grows by two decades or its own length, whichever is more: how far
away the best value is, its end does not show."""
ENOUGH_GOOD = 5
"""Trials near the best one: below, the best may be the only good point that was tried."""
NEAR_SHARE = 0.25
"""Near: within this share of the distance between the best and the median trial."""
BISECTIONS = 20
Flags: TypeAlias = NDArray[np.bool_]


def find_boundaries(search: Search, accepts: Accepts | None = None) -> tuple[Boundary, ...]:
    """Return the ends of ranges at which the best trials lie, each with the next range.

    Two conditions, of one side each: too many of the best trials lie in the outer fifth (binomial
    test), and the values still improve at the very end by a quadratic fit (t test of its slope
    there), in which infeasible trials count as the worst. The second keeps silent about an optimum
    that is near the end, but inside.
    """
    found = (
        _boundary(search, option, side, accepts)
        for option in search.ranges
        for side in ("low", "high")
    )
    return tuple(each for each in found if each is not None)


def _boundary(search: Search, option: str, side: Side, accepts: Accepts | None) -> Boundary | None:
    axis = search.ranges[option]
    best = [
        trial for trial in search.ranked if np.isfinite(axis.position(trial.values.get(option)))
    ]
    places = search.positions(option, best)
    away = 1.0 - places if side == "high" else places
    if best and best[0] == search.ranked[0] and away[0] < 0.0:
        # The baseline may lie outside of the space.
        best, places, at_edge, probability = best[:1], places[:1], 1, 0.0
        where = "above" if side == "high" else "below"
        text = f"the best trial is the baseline, {where} the range of {option}"
    else:
        if len(best) < ENOUGH_TRIALS:
            return None
        best = best[: max(FEWEST_BEST, round(BEST_SHARE * len(best)))]
        places, away = places[: len(best)], away[: len(best)]
        # Of few levels, the end is one of them, which a trial has by chance in 1 / levels.
        width = EDGE if axis.levels is None else max(EDGE, 1.0 / axis.levels)
        # Just below: of six levels, the second lies at exactly 0.2 and is not the end.
        margin = EDGE if axis.levels is None else EDGE * 0.999
        at_edge = int((away <= margin).sum())
        probability = float(bdtrc(at_edge - 1, len(best), width)) if at_edge else 1.0
        is_chance = 2 * at_edge < len(best) or probability > LEVEL
        if is_chance or not _improves_at(search, option, side):
            return None
        end, where = axis.bounds[side == "high"], "upper" if side == "high" else "lower"
        text = f"{at_edge} of the best {len(best)} trials lie at the {where} end of {option}"
        text += f" ({end:.10g})"
    proposed = _extended(axis, side, places, accepts)
    if proposed is None:
        text += "; it cannot be extended: at the option's limit"
    else:
        text += f": search {proposed[0]:.10g} to {proposed[1]:.10g} next"
    return Boundary(
        option=option,
        side=side,
        best=len(best),
        at_edge=at_edge,
        probability=probability,
        proposed=proposed,
        text=text,
    )


def _improves_at(search: Search, option: str, side: Side) -> bool:
    """Whether values still improve at the very end of a range, by a quadratic fit of their ranks.

    Of the other ranges, linear and quadratic terms take out their own effects where enough trials
    are left.
    """
    ended = [trial for trial in search.trials if trial.is_usable or trial.state == "infeasible"]
    # Only ranks enter the fit, so any value below all others will do.
    worst = float(search.values.min()) - 1.0
    values = np.array(
        [worst if trial.value is None or not trial.is_usable else search.sign * trial.value
         for trial in ended]
    )  # fmt: skip
    places = search.positions(option, ended)
    known = np.isfinite(places)
    scores = normal_scores(values[known])
    ahead = places[known] if side == "high" else 1.0 - places[known]
    # Centred on this end, so that the linear term's coefficient is the slope there.
    columns = [np.ones_like(ahead), ahead - 1.0, (ahead - 1.0) ** 2]
    for other in search.ranges:
        if other != option and len(columns) + 2 <= len(ahead) / 3:
            there = np.nan_to_num(search.positions(other, ended)[known], nan=0.5) - 0.5
            columns += [there, there**2]
    design = np.column_stack(columns)
    inverse = np.linalg.pinv(design.T @ design)
    fitted = inverse @ design.T @ scores
    left = len(scores) - design.shape[1]
    if left < 2:
        return False
    residual = scores - design @ fitted
    error = math.sqrt(float(residual @ residual) / left * inverse[1, 1])
    # The slope where `ahead` is 1; at the worst end of noise it is as often above as below zero.
    return error == 0.0 or float(fitted[1]) / error > float(t.ppf(1.0 - LEVEL, left))


def _extended(
    axis: Axis, side: Side, places: Floats, accepts: Accepts | None
) -> tuple[float, float] | None:
    """Return the next range: from the worst of the best trials to beyond this end."""
    length = math.log(axis.bounds[1] / axis.bounds[0]) if axis.is_log else 1.0
    reach = max(1.0, LOG_REACH / length) if axis.is_log else 1.0
    # As far beyond the best of them, where that is the baseline outside of the range.
    reach += max(0.0, float(places.max()) - 1.0, -float(places.min()))
    if side == "high":
        # At most half of the range is given up.
        kept = axis.at(min(max(float(places.min()) - EDGE / 2.0, 0.0), 0.5))
        end = _furthest(axis, 1.0, 1.0 + reach, accepts)
        return None if end is None else (kept, end)
    kept = axis.at(max(min(float(places.max()) + EDGE / 2.0, 1.0), 0.5))
    end = _furthest(axis, 0.0, -reach, accepts)
    return None if end is None else (end, kept)


def _furthest(axis: Axis, inside: float, wanted: float, accepts: Accepts | None) -> float | None:
    """Return the value nearest to the wanted one that the contract takes; None if none is new."""
    furthest = axis.at(wanted)
    if accepts is None or accepts(axis.option, furthest):
        return furthest if furthest != axis.at(inside) else None
    known, refused = inside, wanted
    for _ in range(BISECTIONS):
        middle = (known + refused) / 2.0
        if accepts(axis.option, axis.at(middle)):
            known = middle
        else:
            refused = middle
    found = axis.at(known)
    is_new = abs(known - inside) > EDGE / 10.0 and found != axis.at(inside)
    return found if is_new and accepts(axis.option, axis.at(known)) else None


def count_good_points(search: Search, deviation: float | None = None) -> GoodPoints:
    """Return how many trials came near the best one, and how many more would be enough.

    What lies within two standard deviations between seeds (`deviation` is one training's) is near.
    """
    values, usable = search.values, len(search.usable)
    if not usable:
        text = "no trial completed, so nothing is known about the space"
        return GoodPoints(usable=0, near_best=0, margin=0.0, more_trials=ENOUGH_GOOD, text=text)
    best = float(values.max())
    margin = NEAR_SHARE * (best - float(np.median(values)))
    if deviation is not None:
        seeds = search.plan.study.seeds_per_trial
        margin = max(margin, 2.0 * deviation / math.sqrt(seeds))
    near = int((values >= best - margin).sum())
    more = 0 if near >= ENOUGH_GOOD else math.ceil(usable * (ENOUGH_GOOD - near) / near)
    text = (
        f"{near} of {usable} trials are within {margin:.2g} of the best"
        if near >= ENOUGH_GOOD
        else f"only {near} of {usable} trials are within {margin:.2g} of the best: about {more} "
        "more trials, or a smaller space, would give enough good ones"
    )
    return GoodPoints(usable=usable, near_best=near, margin=margin, more_trials=more, text=text)


def find_infeasible_regions(search: Search) -> tuple[InfeasibleRegion, ...]:
    """Return the rules of one hyperparameter that infeasible trials follow, the clearest first.

    Of each dimension the best threshold, or value, by Fisher's exact test with Bonferroni's
    correction for all that were tried. A lost machine says nothing: failed trials are left out.
    """
    rules = list(_rules(search))
    found: dict[str, InfeasibleRegion] = {}
    for rule in rules:
        p_value = min(1.0, rule.p_value * len(rules))
        known = found.get(rule.option)
        if p_value <= LEVEL and (known is None or p_value < known.p_value):
            found[rule.option] = rule.model_copy(update={"p_value": p_value})
    return tuple(sorted(found.values(), key=lambda rule: rule.p_value))


def _rules(search: Search) -> Iterator[InfeasibleRegion]:
    ended = [trial for trial in search.trials if trial.state != "failed"]
    bad = np.array([trial.state == "infeasible" for trial in ended])
    if not bad.any():
        return
    for option in search.axes:
        known = np.array([option in trial.values for trial in ended])
        axis = search.ranges.get(option)
        if axis is None:
            names = np.array([shown_value(trial.values.get(option)) for trial in ended])
            for name in dict.fromkeys(names[known & bad].tolist()):
                inside = known & (names == name)
                yield _rule(option, f"= {name}", (inside, known & ~inside), bad, None)
            continue
        places = search.positions(option, ended)
        known &= np.isfinite(places)  # the baseline may have no place, as zero on a log scale
        for place in np.unique(places[known & bad]):
            values = axis.at(float(place))
            for sign, inside in ((">=", places >= place), ("<=", places <= place)):
                parts = known & inside, known & ~inside
                cut = _cut(axis, places, parts[1])
                yield _rule(option, f"{sign} {values:.10g}", parts, bad, cut)


def _cut(axis: Axis, places: Floats, kept: Flags) -> tuple[float, float] | None:
    """Return the range of the trials outside of a region, up to the end that it does not touch."""
    if kept.sum() < 2:
        return None
    low, high = float(places[kept].min()), float(places[kept].max())
    first, last = axis.bounds
    return (first, axis.at(high)) if 1.0 - high > low else (axis.at(low), last)


def _rule(
    option: str,
    where: str,
    parts: tuple[Flags, Flags],
    bad: Flags,
    proposed: tuple[float, float] | None,
) -> InfeasibleRegion:
    """Return a rule with its evidence; the parts are the trials inside of it and outside."""
    counts = [int((part & bad).sum()) for part in parts]
    totals = [int(part.sum()) for part in parts]
    table = [[count, total - count] for count, total in zip(counts, totals, strict=True)]
    p_value = float(fisher_exact(table, alternative="greater").pvalue)
    return InfeasibleRegion(
        option=option,
        where=where,
        infeasible_inside=counts[0],
        inside=totals[0],
        infeasible_outside=counts[1],
        outside=totals[1],
        p_value=p_value,
        proposed=proposed,
        text=f"{counts[0]} of {totals[0]} trials with {option} {where} were infeasible, "
        f"{counts[1]} of {totals[1]} elsewhere",
    )
