"""Great Expectations is really asked, and its known traps do not open."""

import json

import pandas as pd
import pytest
from great_expectations import ExpectationSuite, ValidationDefinition, get_context

from perennial.validate_data.claims import Claim
from perennial.validate_data.expectations import judge


def outcome(facts, claim):
    return judge(facts, [claim])[0][0].outcome


@pytest.mark.parametrize(
    ("value", "claim", "expected"),
    [
        (0.5, Claim("x", "x", "", high=0.5), "passed"),
        (0.51, Claim("x", "x", "", high=0.5), "failed"),
        (2, Claim("x", "x", "", low=2), "passed"),
        (1, Claim("x", "x", "", low=2), "failed"),
        (True, Claim("x", "x", "", low=1), "passed"),
        (None, Claim("x", "x", "", high=0.5), "not_evaluated"),
        ("text", Claim("x", "x", "", high=0.5), "not_evaluated"),
        (float("nan"), Claim("x", "x", "", high=0.5), "not_evaluated"),
        (float("inf"), Claim("x", "x", "", high=0.5), "failed"),
    ],
)
def test_a_claim_holds_by_its_bound_and_never_vacuously(value, claim, expected):
    assert outcome({"x": value, "rows": 1}, claim) == expected


def test_without_any_fact_nothing_passes():
    assert outcome({}, Claim("x", "x", "", high=0.5)) == "not_evaluated"


def test_outcomes_stay_with_their_claims_when_one_cannot_be_evaluated():
    claims = [
        Claim("missing", "m", "", low=1),
        Claim("a", "first", "", high=1),
        Claim("a", "second", "", high=3, severity="warning"),
        Claim("b", "third", "", low=9, severity="info"),
    ]
    judged, _ = judge({"a": 2, "b": 3}, claims)
    found = [(each.subject, each.outcome, each.severity, each.observed) for each in judged]
    assert found == [
        ("m", "not_evaluated", "critical", "not measured"),
        ("first", "failed", "critical", "2"),
        ("second", "passed", "warning", "2"),
        ("third", "failed", "info", "3"),
    ]


def test_hints_are_given_only_where_something_is_to_do():
    claims = [Claim("a", "a", "fix it", high=1), Claim("a", "a", "fix it", high=3)]
    assert [each.hint for each in judge({"a": 2}, claims)[0]] == ["fix it", ""]


def test_the_suite_is_the_same_text_each_time_and_loads_again():
    claims = [Claim("a", "a", "", high=1), Claim("b", "b", "", low=1, severity="warning")]
    _, suite = judge({"a": 2, "b": 2}, claims)
    assert suite == judge({"a": 0, "b": 0}, claims)[1]
    document = json.loads(suite)
    loaded = ExpectationSuite(name=document["name"], expectations=document["expectations"])
    context = get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("facts").add_dataframe_asset("facts")
    definition = ValidationDefinition(
        name="again",
        data=asset.add_batch_definition_whole_dataframe("facts"),
        suite=context.suites.add(loaded),
    )
    frame = pd.DataFrame({"a": [2.0], "b": [2.0]})
    result = context.validation_definitions.add(definition).run(
        batch_parameters={"dataframe": frame}
    )
    assert [each.success for each in result.results].count(False) == 1
    assert result.get_max_severity_failure().name == "CRITICAL"
