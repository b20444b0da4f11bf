"""Trials report: what became of each trial."""

from collections.abc import Sequence

from perennial.reports.page import Page
from perennial.studies.records import StudyPlan, Trial, summarize_trials
from perennial.studies.report import trials_table


def trials_page(plan: StudyPlan, trials: Sequence[Trial]) -> Page:
    """Return the page with all trials, the best first."""
    page = Page("Run trials", outcome="neutral", summary=summarize_trials(plan, trials))
    page.text(f"Question: {plan.study.goal}")
    page.values(
        {
            "study": plan.study_digest[:16],
            "metric": f"{plan.metric} ({plan.direction})",
            "sampler": plan.study.sampler,
            "device hours": f"{sum(each.device_seconds for each in trials) / 3600:.3g}",
        }
    )
    search = [trial for trial in trials if trial.stage != "confirm"]
    rest = [trial for trial in search if not trial.is_usable]
    ranked = sorted((trial for trial in search if trial.is_usable), key=plan.rank)
    confirmed = [trial for trial in trials if trial.stage == "confirm"]
    for title, shown in (("Search", ranked + rest), ("Confirmations", confirmed)):
        if shown:
            page.heading(title)
            page.table(*trials_table(plan, shown))
    return page
