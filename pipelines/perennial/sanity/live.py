"""Live checks: run the requested checks and show each result as it comes."""

from perennial.check_skeleton.examination import examine
from perennial.console import Console
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.data.dataset import Dataset
from perennial.sanity.answers import Sanity, result_lines


def answer(question: Sanity, console: Console) -> SkeletonReport:
    """Run the checks and store their results.

    Raises:
        BadDataError: a split has too few rows.
        BadTaskError: the task cannot be fitted, or its sample cannot be encoded.
    """
    # The next task after each number of results.
    ahead = iter([*question.checks[1:], "baselines, report"])

    def show(result: CheckResult) -> None:
        console.note("\n".join(result_lines(result)))
        console.working(f"  … {next(ahead)}")

    console.working("  … reading the data, fitting the task")
    with question.begun():
        examination = examine(
            question.config,
            Dataset(question.snapshot),
            only=question.checks,
            show=show,
        )
        question.keep(examination.report, examination.page)
    return examination.report
