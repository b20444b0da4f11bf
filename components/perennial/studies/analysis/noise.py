"""Noise: variance between seeds, which trials it ties, and how much luck the best one had."""

import math
from collections.abc import Sequence

import numpy as np

from perennial.studies.analysis.search import Floats, Search
from perennial.studies.findings import Noise
from perennial.studies.records import Trial

LEVEL = 0.05
DRAWS = 4000
SEED = 0  # fixed: equal trials must give equal findings


def measure_noise(search: Search, trials: Sequence[Trial]) -> Noise:
    """Return the variance between seeds, against the differences between the best trials.

    From trials of the better half that were trained several times, and from confirmations. Tied
    are the trials that the best one's lead cannot exclude: the subset that contains the truly best
    one with 95% probability (Gupta, 1965).
    """
    deviation, degrees = _deviation(search, trials)
    best = search.ranked[:1]
    if deviation is None or not best:
        text = (
            "the variance between seeds is not known: raise study.seeds_per_trial, or confirm the "
            "finalists"
        )
        return Noise(deviation=None, text=text)
    seeds = search.plan.study.seeds_per_trial
    error = deviation / math.sqrt(seeds)
    # A difference has the errors of both trials.
    lead = _leading_by(len(search.usable), degrees) * math.sqrt(2.0) * error
    values = np.sort(search.values)[::-1]
    number = int((values >= values[0] - lead).sum())
    tied = tuple(trial.number for trial in search.ranked[:number])
    needed = None
    if len(values) > 1 and values[0] > values[1] and error > 0.0:
        # Errors shrink with the root of the number of seeds.
        ratio = lead / float(values[0] - values[1])
        needed = math.ceil(seeds * ratio**2)
    text = f"two seeds differ by {deviation * math.sqrt(2.0):.2g} (standard deviation)"
    if len(tied) > 1:
        text += (
            f": the ranking of the best {len(tied)} trials is noise, because none of them is shown "
            f"to be worse than trial {tied[0]}"
        )
    else:
        text += f": trial {tied[0]} is better than all others beyond that"
    return Noise(
        deviation=deviation,
        degrees=degrees,
        tied=tied,
        seeds_needed=needed,
        optimism=winners_curse(search.values, error),
        text=text,
    )


def _deviation(search: Search, trials: Sequence[Trial]) -> tuple[float | None, int]:
    """Return the standard deviation of one training's value between seeds, and its degrees."""
    groups: dict[int, list[float]] = {}
    for trial in search.ranked[: max(1, (len(search.ranked) + 1) // 2)]:
        values = [each.value for each in trial.trainings if each.value is not None]
        # Negative keys: a trial's seeds in the search and its confirmations stay two groups.
        groups[-1 - trial.number] = values
    for trial in trials:
        if trial.stage == "confirm" and trial.candidate is not None and trial.value is not None:
            groups.setdefault(trial.candidate, []).append(trial.value)
    squares = degrees = 0.0
    for values in groups.values():
        if len(values) > 1:
            squares += float(np.var(values)) * len(values)
            degrees += len(values) - 1
    return (math.sqrt(squares / degrees) if degrees else None), int(degrees)


def _leading_by(count: int, degrees: int) -> float:
    """Return the lead, in errors of a difference, that luck gives in 5% of searches of equals."""
    if count < 2:
        return 0.0
    generator = np.random.default_rng(SEED)
    others = generator.standard_normal((DRAWS, count - 1)).max(axis=1)
    away = (others - generator.standard_normal(DRAWS)) / math.sqrt(2.0)
    # The deviation between seeds is an estimate, too: the lead is studentized.
    scale = np.sqrt(generator.chisquare(degrees, DRAWS) / degrees)
    return float(np.quantile(away / scale, 1.0 - LEVEL))


def winners_curse(values: Floats, error: float) -> float:
    """Return by how much the best of noisy values is too good, on average.

    What noise leaves of the spread above the median is taken for real differences; of trials whose
    true values differ so, noise chooses one. Shrunk as far as their variance asks (Louis, 1984).
    Higher values are better; `error` is the standard error of each.
    """
    if error <= 0.0 or len(values) < 2:
        return 0.0
    middle = float(np.median(values))
    above = values - middle
    spread = float((above[above >= 0.0] ** 2).mean())
    real = max(0.0, spread - error**2)
    true = middle + math.sqrt(real / spread) * above if spread > 0.0 else values
    drawn = true + error * np.random.default_rng(SEED).standard_normal((DRAWS, len(values)))
    best = drawn.argmax(axis=1)
    return float((drawn.max(axis=1) - true[best]).mean())
