"""Suite for the raw data: what was judged, as plain Great Expectations can judge the rows itself.

Limits on facts are stated as expectations on columns where Great Expectations has one of the same
meaning. What compares splits or needs the label's ranking has none, and is listed in `meta`.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from pydantic import JsonValue

from perennial.contracts.snapshot import Snapshot
from perennial.validate_data.claims import Claim
from perennial.validate_data.config import ColumnExpectation, ExpectationsSection
from perennial.validate_data.suites.document import Suite, SuiteExpectation, suite_text

NAME = "perennial"
_LARGEST = sys.float_info.max

Arguments = dict[str, Any]


def raw_suite_text(
    claims: Iterable[Claim],
    own: Iterable[SuiteExpectation],
    snapshot: Snapshot,
    section: ExpectationsSection,
) -> str:
    """Return the suite of a snapshot's claims and of the team's own expectations, as JSON."""
    expectations: list[SuiteExpectation] = []
    unsaid: list[JsonValue] = []
    for claim in claims:
        stated = _state(claim, snapshot, section)
        if stated is None:
            unsaid.append(f"{claim.subject}: {claim.expected}")
            continue
        name, arguments = stated
        expectations.append(
            SuiteExpectation(
                type=f"expect_{name}",
                kwargs=arguments,
                severity=claim.severity,
                meta={"fact": claim.fact, "hint": claim.hint},
            )
        )
    suite = Suite(name=NAME, expectations=(*expectations, *own))
    return suite_text(
        suite,
        {
            "great_expectations_version": version("great-expectations"),
            "snapshot": snapshot.digest(),
            "not_expressed": unsaid,
        },
    )


def _state(
    claim: Claim, snapshot: Snapshot, section: ExpectationsSection
) -> tuple[str, Arguments] | None:
    """Return the expectation that has a claim's meaning on the rows; None if there is none."""
    kind, _, column = claim.fact.partition(":")
    if column and column not in snapshot.columns:
        return None
    limits = section.columns.get(column, ColumnExpectation())
    mostly = 1.0 - float(claim.high or 0.0)
    found: tuple[str, Arguments] | None = None
    match kind:
        case "rows":
            found = "table_row_count_to_be_between", {"min_value": claim.low}
        case "missing_share":
            found = "column_values_to_not_be_null", {"column": column, "mostly": mostly}
        case "values" | "varies" | "label_values":
            least = 1 if kind == "values" else 2
            arguments: Arguments = {"column": column or claim.subject, "min_value": least}
            found = "column_unique_value_count_to_be_between", arguments
        # No expectation is about infinite values, but they lie beyond the largest finite number.
        case "infinite":
            arguments = {"column": column, "min_value": -_LARGEST, "max_value": _LARGEST}
            found = "column_values_to_be_between", arguments
        case "outside_share":
            bounds = {"min_value": limits.min, "max_value": limits.max}
            given = {key: value for key, value in bounds.items() if value is not None}
            arguments = {"column": column, **given, "mostly": mostly}
            found = "column_values_to_be_between", arguments
        case "unlisted_share":
            arguments = {"column": column, "value_set": list(limits.allowed), "mostly": mostly}
            found = "column_values_to_be_in_set", arguments
        case "unmatched_share":
            arguments = {"column": column, "regex": f"^(?:{limits.matches})$", "mostly": mostly}
            found = "column_values_to_match_regex", arguments
        case "duplicate_id_share":
            found = _unique(list(snapshot.data.ids), claim)
        case "duplicate_row_share":
            found = _unique(list(snapshot.columns), claim)
        case "late_rows":
            found = (
                "column_pair_values_a_to_be_greater_than_b",
                {
                    "column_A": snapshot.data.time,
                    "column_B": snapshot.data.available_at[column],
                    "or_equal": True,
                    "ignore_row_if": "either_value_is_missing",
                },
            )
    return found


def _unique(columns: list[str], claim: Claim) -> tuple[str, Arguments]:
    # A repeated row and the row that it repeats both count as not unique.
    mostly = max(1.0 - 2.0 * float(claim.high or 0.0), 0.0)
    if len(columns) == 1:
        return "column_values_to_be_unique", {"column": columns[0], "mostly": mostly}
    return "compound_columns_to_be_unique", {"column_list": columns, "mostly": mostly}
