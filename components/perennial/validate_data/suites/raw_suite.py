"""Suite for the raw data: what was judged, as plain Great Expectations can judge the rows itself.

Limits on facts are stated as expectations on columns where Great Expectations has one of the same
meaning. What compares splits or needs the label's ranking has none, and is listed in `meta`.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from pydantic import JsonValue

from perennial.contracts.snapshot import Snapshot
from perennial.validate_data.claims import Claim
from perennial.validate_data.config import ExpectationsSection
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
        kind, _, column = claim.fact.partition(":")
        state = _STATED.get(kind)
        if state is None or (column and column not in snapshot.columns):
            unsaid.append(f"{claim.subject}: {claim.expected}")
            continue
        name, arguments = state(claim, column, snapshot, section)
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


def _rows(claim: Claim, *_: object) -> tuple[str, Arguments]:
    return "table_row_count_to_be_between", {"min_value": claim.low}


def _missing(claim: Claim, column: str, *_: object) -> tuple[str, Arguments]:
    return "column_values_to_not_be_null", {"column": column, "mostly": _rest(claim)}


def _different(least: int) -> Callable[..., tuple[str, Arguments]]:
    def state(claim: Claim, column: str, *_: object) -> tuple[str, Arguments]:
        arguments = {"column": column or claim.subject, "min_value": least}
        return "column_unique_value_count_to_be_between", arguments

    return state


def _finite(_: Claim, column: str, *__: object) -> tuple[str, Arguments]:
    arguments = {"column": column, "min_value": -_LARGEST, "max_value": _LARGEST}
    return "column_values_to_be_between", arguments


def _inside(
    claim: Claim, column: str, _: Snapshot, section: ExpectationsSection
) -> tuple[str, Arguments]:
    limits = section.columns[column]
    bounds = {"min_value": limits.min, "max_value": limits.max}
    given = {key: value for key, value in bounds.items() if value is not None}
    return "column_values_to_be_between", {"column": column, **given, "mostly": _rest(claim)}


def _listed(
    claim: Claim, column: str, _: Snapshot, section: ExpectationsSection
) -> tuple[str, Arguments]:
    allowed = list(section.columns[column].allowed)
    return "column_values_to_be_in_set", {
        "column": column, "value_set": allowed, "mostly": _rest(claim),
    }  # fmt: skip


def _matching(
    claim: Claim, column: str, _: Snapshot, section: ExpectationsSection
) -> tuple[str, Arguments]:
    pattern = f"^(?:{section.columns[column].matches})$"
    arguments = {"column": column, "regex": pattern, "mostly": _rest(claim)}
    return "column_values_to_match_regex", arguments


def _identified(claim: Claim, _: str, snapshot: Snapshot, *__: object) -> tuple[str, Arguments]:
    # A repeated row and the row that it repeats both count as not unique.
    mostly = max(1.0 - 2.0 * float(claim.high or 0.0), 0.0)
    is_id = claim.fact == "duplicate_id_share"
    columns = list(snapshot.data.ids) if is_id else list(snapshot.columns)
    if len(columns) == 1:
        return "column_values_to_be_unique", {"column": columns[0], "mostly": mostly}
    return "compound_columns_to_be_unique", {"column_list": columns, "mostly": mostly}


def _in_time(_: Claim, column: str, snapshot: Snapshot, *__: object) -> tuple[str, Arguments]:
    return "column_pair_values_a_to_be_greater_than_b", {
        "column_A": snapshot.data.time,
        "column_B": snapshot.data.available_at[column],
        "or_equal": True,
        "ignore_row_if": "either_value_is_missing",
    }


def _rest(claim: Claim) -> float:
    return 1.0 - float(claim.high or 0.0)


_STATED: Mapping[str, Callable[..., tuple[str, Arguments]]] = {
    "rows": _rows,
    "missing_share": _missing,
    "values": _different(1),
    "varies": _different(2),
    "label_values": _different(2),
    "infinite": _finite,
    "outside_share": _inside,
    "unlisted_share": _listed,
    "unmatched_share": _matching,
    "duplicate_id_share": _identified,
    "duplicate_row_share": _identified,
    "late_rows": _in_time,
}
"""Fact → the expectation of the same meaning."""
