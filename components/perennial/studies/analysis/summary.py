"""Summary: all findings about a study's search, from its plan and its trials."""

from collections import Counter
from collections.abc import Sequence

from perennial.studies.analysis.coverage import (
    Accepts,
    count_good_points,
    find_boundaries,
    find_infeasible_regions,
)
from perennial.studies.analysis.effects import explain_values, isolate
from perennial.studies.analysis.length import advise_length
from perennial.studies.analysis.noise import measure_noise
from perennial.studies.analysis.search import Search
from perennial.studies.findings import StudyFindings
from perennial.studies.records import StudyPlan, Trial


def analyze_search(
    plan: StudyPlan, trials: Sequence[Trial], accepts: Accepts | None = None
) -> StudyFindings:
    """Return everything that the search shows; equal trials give equal findings, bit for bit.

    Args:
        plan: The study.
        trials: Those that have ended, confirmations included, in any order.
        accepts: Whether the contract takes a value of an option, for the next ranges.
    """
    trials = sorted(trials, key=lambda trial: trial.number)
    search = Search.of(plan, trials)
    noise = measure_noise(search, trials)
    return StudyFindings(
        study=plan.study_digest,
        trials=dict(sorted(Counter(trial.state for trial in search.trials).items())),
        best=search.ranked[0].number if search.ranked else None,
        boundaries=find_boundaries(search, accepts),
        good_points=count_good_points(search, noise.deviation),
        infeasible=find_infeasible_regions(search),
        isolation=isolate(search, noise.deviation),
        effects=explain_values(search),
        noise=noise,
        length=advise_length(search),
    )
