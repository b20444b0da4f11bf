"""Great Expectations judges the facts; the only module that imports it.

The facts are one row of numbers, so judging costs the same for a thousand rows and for a billion,
and can never run over rows that are not there: an empty table has the fact `rows = 0`.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import great_expectations as gx
import pandas as pd
from great_expectations.core import ExpectationSuite, ExpectationValidationResult
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)
from great_expectations.expectations.core.expect_column_max_to_be_between import (
    ExpectColumnMaxToBeBetween,
)
from great_expectations.expectations.core.expect_column_min_to_be_between import (
    ExpectColumnMinToBeBetween,
)
from great_expectations.expectations.core.expect_table_row_count_to_equal import (
    ExpectTableRowCountToEqual,
)
from great_expectations.expectations.expectation import Expectation as GreatExpectation
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from great_expectations.expectations.metadata_types import FailureSeverity
from pydantic import JsonValue

from perennial.contracts.section import canonical_json
from perennial.contracts.validation import Expectation, FactValue
from perennial.validate_data.claims import Claim

SUITE_NAME = "snapshot"


def judge(
    facts: Mapping[str, FactValue], claims: Sequence[Claim]
) -> tuple[tuple[Expectation, ...], str]:
    """Hold the claims against the facts.

    A claim about a fact that is not there, such as a limit on a column that does not exist or has
    no numbers, is `not_evaluated`, which is not the same as failed, and never passed.

    Returns:
        Each claim with its outcome, in the order of the claims, and the suite as JSON, which Great
        Expectations can load again.
    """
    suite = ExpectationSuite(
        name=SUITE_NAME,
        # Without a row every other expectation would hold vacuously.
        expectations=[
            ExpectTableRowCountToEqual(value=1),
            *(_expectation(index, claim) for index, claim in enumerate(claims)),
        ],
    )
    row = {name: float(value) for name, value in facts.items() if isinstance(value, int | float)}
    results = run_suite(suite, pd.DataFrame(row, index=[0]))
    judged = tuple(_evaluate(claim, results[index]) for index, claim in enumerate(claims))
    return judged, canonical_json(_portable(suite))


def run_suite(
    suite: ExpectationSuite, rows: object, source: Literal["pandas", "spark"] = "pandas"
) -> dict[int, ExpectationValidationResult]:
    """Return each result by its expectation's number, `claim` in `meta`: the order changes.

    Rows are a table of pandas or Spark, as `source` states.
    """
    # Results carry the reason of everything that cannot be evaluated; the log would repeat it.
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    context = gx.get_context(
        mode="ephemeral",
        project_config=DataContextConfig(
            # Without its Data Docs, whose pages load outside scripts: reports are ours.
            store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
            progress_bars=ProgressBarsConfig(globally=False),
            analytics_enabled=False,
        ),
    )
    sources = context.data_sources
    added = sources.add_spark("rows") if source == "spark" else sources.add_pandas("rows")
    batch = (
        added.add_dataframe_asset("rows")
        .add_batch_definition_whole_dataframe("rows")
        .get_batch(batch_parameters={"dataframe": rows})
    )
    # Not by a ValidationDefinition, which fails on verdicts of numpy, as quantiles have them.
    outcome = batch.validate(suite, result_format="SUMMARY")
    by_index = {}
    for result in outcome.results:
        meta = _configuration(result).meta or {}
        if "claim" in meta:
            by_index[int(meta["claim"])] = result
        elif not result.success:
            raise RuntimeError(f"Great Expectations was not given one row of facts: {result}")
    return by_index


def _expectation(index: int, claim: Claim) -> GreatExpectation:
    meta = {"claim": index, "subject": claim.subject, "hint": claim.hint}
    severity = FailureSeverity(claim.severity)
    if claim.low is not None:
        return ExpectColumnMinToBeBetween(
            column=claim.fact, min_value=claim.low, severity=severity, meta=meta
        )
    return ExpectColumnMaxToBeBetween(
        column=claim.fact, max_value=claim.high, severity=severity, meta=meta
    )


def _evaluate(claim: Claim, result: ExpectationValidationResult) -> Expectation:
    observed = result.result.get("observed_value") if result.result else None
    outcome: Literal["passed", "failed", "not_evaluated"] = (
        "not_evaluated" if observed is None else "passed" if result.success else "failed"
    )
    hint = claim.hint
    if outcome == "not_evaluated":
        hint = (
            f"this fact was not measured: check that {claim.subject!r} exists and has the "
            "right type"
        )
    return Expectation(
        name=_configuration(result).type,
        subject=claim.subject,
        severity=claim.severity,
        outcome=outcome,
        expected=claim.expected,
        observed="not measured" if observed is None else f"{observed:.6g}",
        hint="" if outcome == "passed" else hint,
    )


def _portable(suite: ExpectationSuite) -> dict[str, JsonValue]:
    """The suite without the random ids of this process: equal suites have equal text."""
    document = suite.to_json_dict()
    expectations = cast("list[dict[str, JsonValue]]", document["expectations"])
    return {
        "name": SUITE_NAME,
        "meta": document["meta"],
        "expectations": [
            {key: value for key, value in expectation.items() if key != "id"}
            for expectation in expectations
        ],
    }


def _configuration(result: ExpectationValidationResult) -> ExpectationConfiguration:
    if result.expectation_config is None:
        raise RuntimeError(f"Great Expectations gave a result without its expectation: {result}")
    return result.expectation_config
