"""Trials report: what became of each trial."""

from collections import Counter
from collections.abc import Sequence

from perennial.reports.page import Page
from perennial.studies.records import StudyPlan, Trial


def summarize(plan: StudyPlan, trials: Sequence[Trial]) -> str:
    """Return one line: how many trials ended how, the best one and the baseline."""
    search = [trial for trial in trials if trial.stage != "confirm"]
    states = Counter(trial.state for trial in search)
    ends = ", ".join(f"{number} {state}" for state, number in states.items())
    usable = sorted((trial for trial in search if trial.is_usable), key=plan.rank)
    found = f"{len(search)} trials: {ends}"
    if usable:
        found += f"; best {plan.metric} {usable[0].value:.4g} (trial {usable[0].number})"
        found += f", baseline {search[0].value:.4g}"
    confirmed = len(trials) - len(search)
    return f"{found}; {confirmed} confirmations" if confirmed else found


def trials_page(plan: StudyPlan, trials: Sequence[Trial]) -> Page:
    """Return the page with all trials, the best first."""
    page = Page("Run trials", outcome="neutral", summary=summarize(plan, trials))
    page.text(f"Question: {plan.study.goal}")
    page.values(
        {
            "study": plan.study_digest[:16],
            "metric": f"{plan.metric} ({plan.direction})",
            "sampler": plan.study.sampler,
            "device hours": f"{_device_seconds(trials) / 3600:.3g}",
        }
    )
    for title, shown in (
        ("Search", [trial for trial in trials if trial.stage != "confirm"]),
        ("Confirmations", [trial for trial in trials if trial.stage == "confirm"]),
    ):
        if shown:
            page.heading(title)
            page.table(*_table(plan, shown))
    return page


def _device_seconds(trials: Sequence[Trial]) -> float:
    return sum(each.device_seconds for trial in trials for each in trial.trainings)


def _table(plan: StudyPlan, trials: Sequence[Trial]) -> tuple[list[str], list[list[object]]]:
    options = list(plan.study.dimensions)
    short = [option.rpartition(".")[2] for option in options]
    usable = sorted((trial for trial in trials if trial.is_usable), key=plan.rank)
    rest = [trial for trial in trials if not trial.is_usable]
    return (
        ["trial", plan.metric, "state", *short, "reason"],
        [
            [
                trial.number if trial.candidate is None else f"{trial.number} of {trial.candidate}",
                "" if trial.value is None else f"{trial.value:.5g}",
                trial.state,
                *(_shown(trial, option) for option in options),
                trial.reason,
            ]
            for trial in [*usable, *rest]
        ],
    )


def _shown(trial: Trial, option: str) -> str:
    value = trial.values.get(option, "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
