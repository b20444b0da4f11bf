"""Validation of a snapshot: facts, claims, the team's suite, their judgement and its page."""

import json
from datetime import UTC, datetime

import polars as pl

from perennial.clients.object_store import ObjectStore
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import ValidationReport
from perennial.data.dataset import Dataset
from perennial.validate_data.claims import all_claims
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.expectations import judge
from perennial.validate_data.facts import gather_facts
from perennial.validate_data.last_validation import Validation
from perennial.validate_data.report import validation_page
from perennial.validate_data.suites.raw_suite import raw_suite_text
from perennial.validate_data.suites.team_suite import TeamSuite
from perennial.validate_data.unreadable import add_examples


def validate_snapshot(
    snapshot: Snapshot, section: ExpectationsSection, store: ObjectStore, inputs: str
) -> Validation:
    """Measure the partitions of a snapshot that nobody measured before, and judge all of it.

    `inputs` is the digest of all that the validation depends on.

    Raises:
        BadDataError: the data cannot be measured.
        PerennialError: the suite cannot be loaded, or has expectations that cannot be judged.
    """
    schema = Dataset(snapshot).schema() if section.suite else pl.Schema()
    team = TeamSuite.prepare(section, schema, snapshot.rows)
    now = datetime.now(UTC)
    facts = gather_facts(snapshot, section, now, store)
    claims = all_claims(snapshot, section, facts)
    expectations, suite = judge(facts.values, claims)
    found = ValidationReport(
        snapshot_digest=snapshot.digest(),
        facts=facts.values,
        expectations=(
            *add_examples(expectations, snapshot),
            *team.judge(snapshot, store, facts.sample),
        ),
        blocks=facts.blocks,
    )
    return Validation(
        at=now,
        inputs=inputs,
        found=found,
        suite=json.loads(suite),
        raw_suite=raw_suite_text(claims, team.documents, snapshot, section),
        page=validation_page(found, snapshot, section, facts.label).html(),
    )
