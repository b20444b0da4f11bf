"""Claims: the bounds that facts must meet, with severity and remedy."""

from collections.abc import Iterator
from dataclasses import dataclass

from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import Severity
from perennial.validate_data.config import ColumnExpectation, ExpectationsSection
from perennial.validate_data.facts import Facts

_COARSE_SHARE = 0.5
# A broken camera or parser leaves more of these than nature does.
_BLANK_SHARE = 0.01
_BAD_VALUES = {
    "outside": "values beyond `min` or `max`: a wrong unit or a sensor error",
    "unlisted": "values that `allowed` does not list: extend the list or fix the source",
    "unmatched": "texts that do not match: fix the source or the pattern",
}


@dataclass(frozen=True)
class Claim:
    """One bound on one fact.

    Attributes:
        subject: The column it is about, or a property of the whole table.
        low: Smallest value that is good; None for no limit.
        high: Largest value that is good; None for no limit.
    """

    fact: str
    subject: str
    hint: str
    low: float | None = None
    high: float | None = None
    severity: Severity = "critical"

    @property
    def expected(self) -> str:
        """The bound in words."""
        what = self.fact.partition(":")[0].replace("_", " ")
        low = f" at least {self.low:g}" if self.low is not None else ""
        return f"{what}{low}" + (f" at most {self.high:g}" if self.high is not None else "")


def all_claims(snapshot: Snapshot, section: ExpectationsSection, facts: Facts) -> tuple[Claim, ...]:
    """Return every claim on a snapshot, the table first, then column by column."""
    claims = [*_table_claims(section), *_label_claims(snapshot, section, facts)]
    claims += _repeat_claims(snapshot, section, facts)
    claims += _role_claims(snapshot, facts)
    for feature in snapshot.task_columns.features:
        claims += _feature_claims(feature, section, facts)
    for column, derived in facts.opaque.items():
        claims += _opaque_claims(column, section)
        for each in derived:
            claims += _leakage_claims(each, section, facts)
    for column, expectation in section.columns.items():
        claims += _declared_claims(column, expectation)
    claims += [
        Claim(
            each.fact,
            each.column,
            f"{each.split.value} rows have other values than training rows, by more than blocks of "
            "the data differ: the split follows something that changes; look at split.method",
            high=each.limit,
            severity="warning",
        )
        for each in facts.splits
    ]
    known = {*snapshot.task_columns.features, *(each for d in facts.opaque.values() for each in d)}
    for feature in sorted(set(section.leakage_allow) - known):
        claims.append(
            Claim(
                f"leakage_auc:{feature}",
                feature,
                "leakage_allow names no such feature: correct it or remove it",
                high=1.0,
                severity="warning",
            )
        )
    return tuple(claims)


def _table_claims(section: ExpectationsSection) -> Iterator[Claim]:
    yield Claim(
        "rows", "rows", "wait for more data, or lower expectations.min_rows", low=section.min_rows
    )


def _label_claims(
    snapshot: Snapshot, section: ExpectationsSection, facts: Facts
) -> Iterator[Claim]:
    label = snapshot.data.label
    yield Claim(
        f"missing_share:{label}",
        label,
        "fill the label at the source; if labels arrive late, raise "
        "expectations.max_missing_label_share",
        high=section.max_missing_label_share,
    )
    yield Claim(
        "label_values",
        label,
        "the label never changes, so a model cannot learn anything: check "
        "its definition and the filter that made the data",
        low=2,
    )
    if f"infinite:{label}" in facts.values:
        yield Claim(
            f"infinite:{label}",
            label,
            "an infinite label makes every loss infinite: fix the source",
            high=0,
        )
    if facts.label.kind == "classes":
        untrained = ", ".join(facts.label.untrained[:5])
        yield Claim(
            "untrained_classes",
            label,
            f"the classes {untrained} have no training row: wait for more data, drop their rows, "
            'or set expectations.label_kind = "number" if the label is an amount',
            high=0,
        )
        yield Claim(
            "rarest_class_rows",
            label,
            "metrics of the rarest class are noise: collect more of it, or merge classes",
            low=section.min_class_rows,
            severity="warning",
        )


def _repeat_claims(
    snapshot: Snapshot, section: ExpectationsSection, facts: Facts
) -> Iterator[Claim]:
    # Rows without a time or an id may well be equal without being the same.
    identified: Severity = "critical" if snapshot.data.ids or snapshot.data.time else "warning"
    yield Claim(
        "duplicate_row_share",
        "rows",
        "the source delivers rows twice: deduplicate on write",
        high=section.max_duplicate_share,
        severity=identified,
    )
    yield Claim(
        "overlap_beyond_chance",
        "features and label",
        "validation and test hold copies of "
        "training rows, so they measure memorisation: deduplicate the data, or split by a group "
        "that keeps copies together",
        high=section.max_overlap_share,
    )
    # Where most rows share features and label with others, contradictions are plain uncertainty.
    if float(facts.values["coarse_share"] or 0) < _COARSE_SHARE:
        yield Claim(
            "conflict_share",
            "features and label",
            "equal features come with different labels: "
            "look for mislabelled copies or a missing feature",
            high=section.max_conflict_share,
            severity="warning",
        )
    if snapshot.data.ids:
        yield Claim(
            "duplicate_id_share",
            "ids",
            "data.ids do not identify a row: deduplicate, or name the columns that do",
            high=section.max_duplicate_share,
        )
        yield Claim(
            "overlap_id_share",
            "ids",
            "the same ids lie in training and in held-out splits: deduplicate, or split by group",
            high=section.max_overlap_share,
        )
    if section.max_group_overlap_share is not None:
        yield Claim(
            "overlap_group_share",
            snapshot.data.group or "group",
            'held-out rows belong to groups seen in training: set split.method = "group"',
            high=section.max_group_overlap_share,
        )
    if "future_rows" in facts.values:
        yield Claim(
            "future_rows",
            snapshot.data.time or "time",
            "rows lie in the future: check the source's clock, time zone and unit",
            high=0,
        )


def _role_claims(snapshot: Snapshot, facts: Facts) -> Iterator[Claim]:
    data = snapshot.data
    for column in filter(None, dict.fromkeys((data.time, data.group, *data.ids))):
        yield Claim(
            f"missing_share:{column}",
            column,
            "a row without it cannot be assigned to a split or identified: fill it at the source",
            high=0,
        )
    for feature in data.available_at:
        yield Claim(
            f"late_rows:{feature}",
            feature,
            f"its value became known after {data.time!r}: the "
            "model would see the future; take the value known at that time",
            high=0,
        )
        yield Claim(
            f"undated_rows:{feature}",
            feature,
            "it has values whose time of arrival is missing, so late values cannot be detected",
            high=0,
            severity="warning",
        )


def _feature_claims(feature: str, section: ExpectationsSection, facts: Facts) -> Iterator[Claim]:
    yield Claim(
        f"values:{feature}",
        feature,
        "no row has a value: the source stopped filling it or a "
        "join failed; fix it, or list it under data.meta",
        low=1,
    )
    if feature not in section.columns or section.columns[feature].max_missing_share is None:
        yield Claim(
            f"missing_share:{feature}",
            feature,
            "find out why it is missing, or state its usual share as max_missing_share under "
            "[expectations.columns.NAME]",
            high=section.max_missing_share,
            severity="warning",
        )
    if f"infinite:{feature}" in facts.values:
        yield Claim(
            f"infinite:{feature}",
            feature,
            "one infinite value makes means and losses infinite: "
            "write null instead, often of a division by zero",
            high=0,
        )
    if facts.values.get(f"varies:{feature}") is not None:
        yield Claim(
            f"varies:{feature}",
            feature,
            "it has one value in all rows: the source broke or the "
            "column is useless; list it under data.meta",
            low=1,
            severity="warning",
        )
    if f"distinct_share:{feature}" in facts.values:
        yield Claim(
            f"distinct_share:{feature}",
            feature,
            "nearly every row has a value of its own, like "
            "an identifier: list it under data.ids or data.meta",
            high=section.max_distinct_share,
            severity="warning",
        )
    yield from _leakage_claims(feature, section, facts)


def _opaque_claims(column: str, section: ExpectationsSection) -> Iterator[Claim]:
    yield Claim(
        f"unreadable_share:{column}",
        column,
        "pictures that cannot be decoded, or lists with "
        "values that are not finite numbers: write them again at the source",
        high=0.0,  # training and serving refuse such a row
    )
    yield Claim(
        f"blank_share:{column}",
        column,
        "pictures of one colour, lists of one number or texts "
        "without a word: look for a broken camera, crop or parser",
        high=_BLANK_SHARE,
        severity="warning",
    )
    yield Claim(
        f"repeated_share:{column}",
        column,
        "the same content comes under several ids: "
        "deduplicate it, or split by a group that keeps copies together",
        high=section.max_repeated_share,
        severity="warning",
    )


def _leakage_claims(feature: str, section: ExpectationsSection, facts: Facts) -> Iterator[Claim]:
    """Claims that no feature predicts the label alone; the width of a picture may, too."""
    if f"leakage_auc:{feature}" in facts.values and feature not in section.leakage_allow:
        hint = (
            "it predicts the label almost alone (possible leakage); it is probably recorded after "
            "the label: list it under data.meta, or under expectations.leakage_allow if you know "
            "why it is legitimate"
        )
        auc = f"leakage_auc:{feature}"
        yield Claim(auc, feature, hint, high=section.leakage_auc_fail)
        yield Claim(auc, feature, hint, high=section.leakage_auc_warn, severity="warning")


def _declared_claims(column: str, expectation: ColumnExpectation) -> Iterator[Claim]:
    limits = expectation
    asked = {
        "outside": limits.min is not None or limits.max is not None,
        "unlisted": bool(limits.allowed),
        "unmatched": bool(limits.matches),
    }
    for kind in (kind for kind, is_asked in asked.items() if is_asked):
        yield Claim(
            f"{kind}_share:{column}",
            column,
            _BAD_VALUES[kind],
            high=limits.max_bad_share,
            severity=limits.severity,
        )
    if limits.max_missing_share is not None:
        yield Claim(
            f"missing_share:{column}",
            column,
            "more values are missing than usual: look at the source",
            high=limits.max_missing_share,
            severity=limits.severity,
        )
