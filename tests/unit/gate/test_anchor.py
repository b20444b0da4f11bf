"""Promotions of what is not worse go back to the last champion that was shown to be better."""

from datetime import UTC, datetime, timedelta

import pytest

from perennial.clients.tracking import open_tracking
from perennial.contracts.gate import Comparison, Interval, Verdict
from perennial.contracts.version_decisions import GATE, VersionDecision, tags_of_promotion
from perennial.gate import champion as anchor
from perennial.gate.champion import find_anchor
from perennial.registry.model_registry import CHAMPION, open_registry

NAME = "clicks"
BETTER, NOT_WORSE = 0.01, -0.01


@pytest.fixture
def registry(environment):
    found = open_registry(environment)
    found.describe_model(NAME, "", {})
    return found


@pytest.fixture
def promote(environment, registry, tmp_path):
    """Registers a version whose verdict has a lower bound, and makes it champion."""

    def one(low, *, by=GATE, readable=True, judged_against=None):
        before = registry.aliases(NAME).get(CHAMPION, "")
        against = before if judged_against is None else judged_against
        number = str(len(registry.versions(NAME)) + 1)
        folder = tmp_path / number
        found = Interval(estimate=low + 0.01, low=low, high=low + 0.02)
        compared = Comparison(
            metric="auc", challenger=0.8, champion=0.79, improvement=found if against else None
        )
        Verdict(
            promote=True, summary="", reasons=(), comparisons=(compared,), baselines={},
            champion_version=against, test_rows=1, test_blocks=1, performance_reference=(),
        ).write(folder)  # fmt: skip
        if not readable:
            (folder / Verdict.file_name).write_text("{}")
        tracking = open_tracking(environment, NAME)
        tracking.log_artifacts(folder, f"v{number}")
        made = registry.register(
            NAME, source=tracking.artifact_uri(f"v{number}"), run_id=tracking.run_id,
            fingerprint=number, tags={}, description="",
        )  # fmt: skip
        tags = tags_of_promotion(made.version, before, VersionDecision.now(by, "why"))
        registry.promote(NAME, made.version, before, tags)

    return one


def anchor_of(registry, days=365):
    found = find_anchor(registry, registry.version_by_alias(NAME, CHAMPION), days)
    return found[0] if found else None


def test_a_chain_of_what_was_not_worse_leads_to_the_last_that_was_better(registry, promote):
    promote(BETTER)
    assert anchor_of(registry) is None, "the first model has nothing before it"
    promote(BETTER)
    assert anchor_of(registry) is None, "it was shown to be better"
    promote(NOT_WORSE)
    assert anchor_of(registry) == "2"
    promote(NOT_WORSE, readable=False)
    assert anchor_of(registry) == "2", "nothing was shown that can be read"
    promote(NOT_WORSE, by="ada")
    assert anchor_of(registry) is None, "a person began the record again"


def test_an_anchor_that_is_too_old_is_left_behind(registry, promote, monkeypatch):
    promote(BETTER)
    promote(NOT_WORSE)

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + timedelta(days=30)

    monkeypatch.setattr(anchor, "datetime", Later)
    assert anchor_of(registry, days=31) == "1"
    assert anchor_of(registry, days=29) is None


def test_an_anchor_that_was_deleted_is_named(registry, promote, environment):
    promote(BETTER)
    promote(NOT_WORSE)
    registry._client.delete_model_version(NAME, "1")
    found = find_anchor(registry, registry.version_by_alias(NAME, CHAMPION), 365)
    assert found == ("1", None)


@pytest.mark.parametrize("judged_against", ["1", ""])
def test_a_verdict_against_another_champion_than_the_replaced_one_shows_nothing(
    registry, promote, judged_against
):
    """The champion moved after the registration; the verdict on the new one is not in the files."""
    promote(BETTER)
    promote(BETTER)
    promote(BETTER, judged_against=judged_against)
    assert anchor_of(registry) == "2"
