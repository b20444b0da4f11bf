"""Effects: which hyperparameters matter, which interact, and what each value reaches at its best.

Importance is a functional analysis of variance (Hooker, 2007; Hutter, Hoos and Leyton-Brown, 2014)
of a quadratic response surface (Box and Wilson, 1951) fitted to the normal scores of the trials'
values, which a diverged trial cannot dominate. A forest finds stranger shapes, but has no error
that thirty trials could give it.
"""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import f as f_distribution
from scipy.stats import ncf

from perennial.studies.analysis.search import Floats, Search, normal_scores, shown_value
from perennial.studies.findings import Effect, Effects, Isolation, IsolationPoint

LEVEL = 0.05
SPARE = 5
"""Trials beyond the coefficients of a fit; with fewer, it explains everything."""


def isolate(search: Search, deviation: float | None = None) -> tuple[Isolation, ...]:
    """Return isolation plots: for each value of a hyperparameter, the best over all others.

    Google's Deep Learning Tuning Playbook, "Understanding the impact of a hyperparameter with
    isolation plots". The best of more trials is better by luck alone, so each value has the best
    to expect of equally many trials beside it (Dodge et al., 2019). `deviation` is the standard
    deviation of one training between seeds.
    """
    seeds = search.plan.study.seeds_per_trial
    spread = None if deviation is None else 2.0 * deviation / math.sqrt(seeds)
    scientific = [each for each in search.plan.study.scientific if each in search.axes]
    options = [*scientific, *(each for each in search.axes if each not in scientific)]
    found = []
    for option in options:
        groups = search.groups(option)
        if len(groups) < 2:
            continue
        fewest = min(len(group) for group in groups.values())
        points = tuple(
            IsolationPoint(
                value=value,
                trials=len(group),
                best=search.sign * float(search.values[group].max()),
                equal_budget=search.sign * best_of(search.values[group], fewest),
                spread=spread,
            )
            for value, group in groups.items()
        )
        found.append(Isolation(option=option, points=points))
    return tuple(found)


def best_of(values: Floats, count: int) -> float:
    """Return the expected largest of this many values, drawn without replacement."""
    ordered = np.sort(values)[::-1]
    number = len(ordered)
    # If the value at a place is the largest that is drawn, the others come from behind it.
    chances = [math.comb(number - 1 - place, count - 1) for place in range(number)]
    return float(ordered @ np.array(chances, dtype=np.float64) / math.comb(number, count))


def explain_values(search: Search) -> Effects:
    """Return how much of the trials' differences each hyperparameter and each pair explains.

    F tests with Holm's correction; "not distinguishable from noise" is an answer. The bounds of a
    share are those of the noncentral F distribution.
    """
    number = len(search.usable)
    terms = {option: _terms(search, option) for option in search.axes}
    terms = {option: columns for option, columns in terms.items() if columns.shape[1]}
    if number < SPARE or not terms:
        return Effects(text="too few trials to tell which hyperparameters matter")
    if not np.ptp(search.values):
        return Effects(text="all trials have the same value: no hyperparameter has an effect")
    if not _has_room(terms, number):  # a straight line for each instead of a parabola
        terms = {
            option: columns[:, :1] if option in search.ranges else columns
            for option, columns in terms.items()
        }
    if not _has_room(terms, number):
        text = f"{number} trials are too few to tell which of {len(terms)} hyperparameters matter"
        return Effects(text=text)
    scores = normal_scores(search.values)
    main = _holm(
        [
            _effect((option,), _joined(terms, without=option), columns, scores)
            for option, columns in terms.items()
        ]
    )
    everything = _joined(terms)
    pairs = []
    for first, second in combinations(terms, 2):
        product = _product(search, terms, first, second)
        if everything.shape[1] + product.shape[1] + SPARE <= number and product.any():
            pairs.append(_effect((first, second), everything, product, scores))
    ordered = sorted(main, key=lambda effect: -effect.share)
    clear = [effect for effect in ordered if effect.is_clear]
    names = ", ".join(f"{each.options[0]} ({each.share:.0%})" for each in clear)
    rest = [effect.options[0] for effect in ordered if not effect.is_clear]
    text = f"the differences come from {names}" if clear else "no hyperparameter has a clear effect"
    if rest:
        text += f"; not distinguishable from noise: {', '.join(rest)}"
    found = sorted(_holm(pairs), key=lambda effect: effect.p_value)
    for pair in found:
        if pair.is_clear:
            text += f"; {pair.options[0]} and {pair.options[1]} interact: tune them together"
    return Effects(main=tuple(ordered), pairs=tuple(found), text=text)


def _terms(search: Search, option: str) -> Floats:
    """Return a hyperparameter's columns: position and its square, or one column per choice."""
    if option in search.ranges:
        places = 2.0 * search.positions(option, search.usable) - 1.0
        known = np.isfinite(places)
        linear = np.where(known, places, 0.0)
        # Less its mean over [-1, 1]: evenly spread trials do not correlate it with the constant.
        square = np.where(known, places**2 - 1.0 / 3.0, 0.0)
        columns = np.column_stack([linear, square])
    else:
        names = [shown_value(trial.values.get(option)) for trial in search.usable]
        # The first choice is the constant's: a column for each would add up to it.
        levels = sorted(set(names))[1:]
        columns = np.array([[float(name == level) for level in levels] for name in names])
        columns = columns.reshape(len(names), len(levels))
    return columns[:, np.ptp(columns, axis=0) > 0.0] if len(columns) else columns


def _product(search: Search, terms: dict[str, Floats], first: str, second: str) -> Floats:
    ones = [
        terms[option][:, :1] if option in search.ranges else terms[option]
        for option in (first, second)
    ]
    left, right = (columns - columns.mean(axis=0) for columns in ones)
    return np.column_stack([a * b for a in left.T for b in right.T])


def _has_room(terms: dict[str, Floats], number: int) -> bool:
    coefficients = 1 + sum(len(columns.T) for columns in terms.values())
    return coefficients + SPARE <= number


def _joined(terms: dict[str, Floats], without: str = "") -> Floats:
    rows = len(next(iter(terms.values())))
    kept = [columns for option, columns in terms.items() if option != without]
    return np.column_stack([np.ones(rows), *kept])


def _effect(options: tuple[str, ...], others: Floats, own: Floats, scores: Floats) -> Effect:
    """Return what columns explain beyond the others."""
    both = np.column_stack([others, own])
    before, after = _residual(others, scores), _residual(both, scores)
    added = np.linalg.matrix_rank(both) - np.linalg.matrix_rank(others)
    left = len(scores) - int(np.linalg.matrix_rank(both))
    total = float(np.var(scores) * len(scores))
    if added < 1 or left < 1:
        return Effect(options=options, share=0.0, low=0.0, high=1.0, p_value=1.0, is_clear=False)
    error = max(after / left, 1e-12)
    ratio = (before - after) / added / error
    # Columns of pure noise explain `added * error` on average.
    share = max(0.0, before - after - added * error) / total
    bounds = [
        min(1.0, _noncentrality(ratio, added, left, chance) * error / total)
        for chance in (0.95, 0.05)
    ]
    return Effect(
        options=options,
        share=min(share, 1.0),
        low=bounds[0],
        high=bounds[1],
        p_value=float(f_distribution.sf(ratio, added, left)),
        is_clear=False,
    )


def _residual(columns: Floats, scores: Floats) -> float:
    fitted = columns @ np.linalg.lstsq(columns, scores, rcond=None)[0]
    return float(((scores - fitted) ** 2).sum())


def _noncentrality(ratio: float, added: int, left: int, chance: float) -> float:
    """Return the noncentrality of which so small a ratio has this chance; 0 if none has."""

    def excess(centre: float) -> float:
        return float(ncf.cdf(ratio, added, left, centre)) - chance

    if ratio <= 0.0 or float(f_distribution.cdf(ratio, added, left)) <= chance:
        return 0.0
    highest = 4.0 * (ratio * added + added + 50.0)
    return float(brentq(excess, 1e-9, highest)) if excess(highest) < 0.0 else highest


def _holm(effects: Sequence[Effect]) -> list[Effect]:
    """Correct p-values for their number (Holm, 1979)."""
    corrected, highest = list(effects), 0.0
    order: NDArray[np.int64] = np.argsort([effect.p_value for effect in effects], kind="stable")
    for place, index in enumerate(order.tolist()):
        highest = max(highest, min(1.0, effects[index].p_value * (len(effects) - place)))
        changes = {"p_value": highest, "is_clear": highest <= LEVEL}
        corrected[index] = effects[index].model_copy(update=changes)
    return corrected
