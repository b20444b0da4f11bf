"""Measures a snapshot, judges it, writes the validation report, and stops the run on bad data."""

from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on, write_atomically
from perennial.contracts.environment import Environment
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import ValidationReport
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.validate_data.config import ExpectationsSection, ValidateDataConfig
from perennial.validate_data.last_validation import Validation, validate_once
from perennial.validate_data.report import remedies, summary_of


@pipeline_step(
    "validate_data", reads=ValidateDataConfig, outputs=("validation", "report", "perennial_suite")
)
def validate_data_step(
    *, contract: str, snapshot: str, validation: str, report: str, perennial_suite: str
) -> StepResult:
    """Validate a snapshot.

    Raises:
        BadDataError: a critical expectation is not met; the reports are written all the same.
    """
    config, environment = ValidateDataConfig.from_json(contract), Environment.read()
    taken = Snapshot.read(Path(snapshot))
    store = open_store(environment.store_uri)

    def validate(inputs: str) -> Validation:
        # Here, because importing Great Expectations takes seconds.
        from perennial.validate_data.validation import validate_snapshot  # noqa: PLC0415

        return validate_snapshot(taken, config.expectations, store, inputs)

    done, is_reused = validate_once(store, config, taken, environment, validate)
    hand_on(Path(validation), done.found, Path(snapshot), more={"suite": done.suite})
    write_atomically(Path(perennial_suite), done.raw_suite.encode())
    write_atomically(Path(report), done.page.encode())
    if done.found.failures:
        raise _bad_data(done.found, taken, config.expectations)
    unchanged = f"Nothing new since {done.at:%Y-%m-%d %H:%M} UTC. " if is_reused else ""
    return StepResult(metrics=_scalars(done.found), summary=unchanged + summary_of(done.found))


def _bad_data(
    report: ValidationReport, snapshot: Snapshot, section: ExpectationsSection
) -> BadDataError:
    failures = report.failures
    return BadDataError(
        f"the data is not fit to train on: {len(failures)} critical expectations are not met",
        evidence="; ".join(f"{e.subject}: {e.expected}, observed {e.observed}" for e in failures),
        action="\n            ".join(
            f"{subjects}: {remedy}".replace("\n", "\n              ")
            for subjects, remedy in remedies(failures, snapshot, section)
        ),
    )


def _scalars(report: ValidationReport) -> dict[str, float]:
    """The facts of the whole table, and how many expectations were met."""
    facts = {
        name: float(value)
        for name, value in report.facts.items()
        if ":" not in name and isinstance(value, int | float)
    }
    not_met = sum(each.outcome != "passed" for each in report.expectations)
    return facts | {"expectations": len(report.expectations), "expectations_not_met": not_met}
