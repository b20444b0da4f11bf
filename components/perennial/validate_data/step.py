"""Measures a snapshot, judges it, writes the validation report, and stops the run on bad data."""

import json
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on, write_atomically
from perennial.contracts.environment import Environment
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import ValidationReport
from perennial.data.dataset import Dataset
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.validate_data.claims import all_claims
from perennial.validate_data.config import ExpectationsSection, ValidateDataConfig
from perennial.validate_data.expectations import judge
from perennial.validate_data.facts import gather_facts
from perennial.validate_data.report import remedies, summary_of, validation_page
from perennial.validate_data.suites.raw_suite import raw_suite_text
from perennial.validate_data.suites.team_suite import TeamSuite


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
    section = ValidateDataConfig.from_json(contract).expectations
    taken = Snapshot.read(Path(snapshot))
    schema = Dataset(taken).scan().collect_schema() if section.suite else pl.Schema()
    team = TeamSuite.prepare(section, schema, taken.rows)
    store = open_store(Environment.read().store_uri)
    facts = gather_facts(taken, section, datetime.now(UTC), store)
    claims = all_claims(taken, section, facts)
    expectations, suite = judge(facts.values, claims)
    raw = raw_suite_text(claims, team.documents, taken, section)
    write_atomically(Path(perennial_suite), raw.encode())
    found = ValidationReport(
        snapshot_digest=taken.digest(),
        facts=facts.values,
        expectations=(*expectations, *team.judge(taken, section, store)),
        blocks=facts.blocks,
    )
    hand_on(Path(validation), found, Path(snapshot), more={"suite": json.loads(suite)})
    validation_page(found, taken, section, facts.label).write(Path(report))
    if found.failures:
        raise _bad_data(found, taken, section)
    return StepResult(metrics=_scalars(found), summary=summary_of(found))


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
