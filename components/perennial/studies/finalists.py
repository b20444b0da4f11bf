"""Finalists: the trials of the search that are trained again with fresh seeds at the end."""

from collections.abc import Sequence

from perennial.studies.analysis.search import Search, shown_value
from perennial.studies.records import StudyPlan, Trial

MOST = 4
"""Each further finalist costs `confirmations` trainings, and widens the intervals of all."""


def finalists(plan: StudyPlan, trials: Sequence[Trial]) -> tuple[int, ...]:
    """Return the numbers of the finalists, the best first; none if no trial but the baseline ended.

    The best trial, and the best one of each value that a scientific hyperparameter has, up to four.
    The baseline, trial 0, is confirmed with them in any case and is none of them.
    """
    search = Search.of(plan, trials)
    found = [trial.number for trial in search.ranked if trial.number][:1]
    chosen = best_by_value(search)
    wanted = {number for numbers in chosen.values() for number in numbers.values()}
    rest = [trial.number for trial in search.ranked if trial.number in wanted]
    return tuple(dict.fromkeys([*found, *rest]))[:MOST]


def best_by_value(search: Search) -> dict[str, dict[str, int]]:
    """Return scientific option → value → number of the best trial that has it.

    Only hyperparameters of few values: those of a range cannot be confirmed one by one. The
    baseline stands for none: its other values may lie outside of what was searched for all.
    """
    found: dict[str, dict[str, int]] = {}
    for option in search.plan.study.scientific:
        if option not in search.dimensions or not _has_few_values(search, option):
            continue
        best: dict[str, int] = {}
        for trial in search.ranked:
            if trial.number and option in trial.values:
                best.setdefault(shown_value(trial.values[option]), trial.number)
        found[option] = best
    return found


def _has_few_values(search: Search, option: str) -> bool:
    scale = search.scales.get(option)
    if scale is None:
        return True
    return scale.levels is not None and scale.levels <= MOST
