"""Finalists: the trials of the search that are trained again with fresh seeds at the end."""

from collections.abc import Sequence

from perennial.studies.analysis.search import Search
from perennial.studies.records import StudyPlan, Trial

MOST = 4
"""Each further finalist costs `confirmations` trainings, and widens the intervals of all."""
THIRDS = 3
"""A range is asked about as its lower, middle and upper third, on its own scale."""


def finalists(plan: StudyPlan, trials: Sequence[Trial]) -> tuple[int, ...]:
    """Return the numbers of the finalists, the best first; none if no trial but the baseline ended.

    The best trial, and the best one of each value, or third of a range, that a scientific
    hyperparameter has, up to four. The baseline, trial 0, is confirmed with them in any case and is
    none of them.
    """
    search = Search.of(plan, trials)
    found = [trial.number for trial in search.ranked if trial.number][:1]
    chosen = best_by_value(search)
    wanted = {number for numbers in chosen.values() for number in numbers.values()}
    rest = [trial.number for trial in search.ranked if trial.number in wanted]
    return tuple(dict.fromkeys([*found, *rest]))[:MOST]


def best_by_value(search: Search) -> dict[str, dict[str, int]]:
    """Return scientific option → value, or third of a range → number of the best trial that has it.

    The baseline stands for none: its other values may lie outside of what was searched for all.
    """
    found: dict[str, dict[str, int]] = {}
    for option in search.plan.study.scientific:
        if option not in search.dimensions:  # it is tied to another one
            continue
        groups = search.groups(option, bins=THIRDS)
        names = {search.usable[i].number: name for name, group in groups.items() for i in group}
        best: dict[str, int] = {}
        for trial in search.ranked:
            if trial.number and trial.number in names:
                best.setdefault(names[trial.number], trial.number)
        found[option] = best
    return found
