"""Claims: the bounds that facts must meet, with severity and remedy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import Severity
from perennial.data.opaque_columns import is_content, statistic
from perennial.validate_data.config import ColumnExpectation, ExpectationsSection
from perennial.validate_data.facts import Facts
from perennial.validate_data.labels import SURE_CLASSES

_COARSE_SHARE = 0.5
_MOST_CLASSES_PER_ROW = 0.5
# Two of so many measured numbers are seldom equal.
_LONG_LIST = 16
# A broken camera or parser leaves more of these than nature does.
_BLANK_SHARE = 0.01
_HINTS = {
    "rows": "wait for more data, or lower expectations.min_rows",
    "label_values": "the label never changes, so a model cannot learn anything: check its "
    "definition and the filter that made the data",
    "rarest_class_rows": "metrics of the rarest class are noise: collect more of it, or merge "
    'classes; set expectations.label_kind = "number" if the label is an amount',
    "duplicate_row_share": "the source delivers rows twice: deduplicate on write",
    "overlap_beyond_chance": "validation and test hold copies of training rows, so they measure "
    "memorisation: deduplicate the data, or split by a group that keeps copies together",
    "conflict_share": "equal features come with different labels: look for mislabelled copies or a "
    "missing feature",
    "duplicate_id_share": "data.ids do not identify a row: deduplicate, or name the columns that "
    "do",
    "overlap_id_share": "the same ids lie in training and in held-out splits: deduplicate, or "
    "split by group",
    "overlap_group_share": "held-out rows belong to groups seen in training: set split.method = "
    '"group"',
    "future_rows": "rows lie in the future: check the source's clock, time zone and unit",
    "undated_rows": "it has values whose time of arrival is missing, so late values cannot be "
    "detected",
    "values": "no row has a value: the source stopped filling it or a join failed; fix it, or list "
    "it under data.meta",
    "varies": "it has one value in all rows: the source broke or the column is useless; list it "
    "under data.meta",
    "distinct_share": "nearly every row has a value of its own, like an identifier: list it under "
    "data.ids or data.meta",
    "unreadable_share": "pictures that cannot be decoded, or lists with infinite numbers: write "
    "them again at the source, pictures as complete PNG or JPEG of eight bits per channel",
    "blank_share": "pictures of one colour, lists of one number or texts without a word: look for "
    "a broken camera, crop or parser",
    "repeated_share": "the same content comes under several ids: deduplicate it, or split by a "
    "group that keeps copies together",
    "leakage_auc": "it predicts the label almost alone (possible leakage); it is probably recorded "
    "after the label: list it under data.meta, or under expectations.leakage_allow if you know why "
    "it is legitimate",
    "outside_share": "values beyond `min` or `max`: a wrong unit or a sensor error",
    "unlisted_share": "values that `allowed` does not list: extend the list or fix the source",
    "unmatched_share": "texts that do not match: fix the source or the pattern",
}
"""Kind of fact → what to do where its bound is not met; other claims bring their own hint."""


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


def _claim(
    fact: str,
    subject: str,
    hint: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    severity: Severity = "critical",
) -> Claim:
    hint = hint or _HINTS[fact.partition(":")[0]]
    return Claim(fact, subject, hint, low, high, severity)


def all_claims(snapshot: Snapshot, section: ExpectationsSection, facts: Facts) -> tuple[Claim, ...]:
    """Return every claim on a snapshot, the table first, then column by column."""
    claims, rows = [_claim("rows", "rows", low=section.min_rows)], int(str(facts.values["rows"]))
    claims += _label_claims(snapshot, section, facts)
    claims += _repeat_claims(snapshot, section, facts)
    claims += _role_claims(snapshot)
    for feature in snapshot.described_features:
        claims += _feature_claims(feature, section, facts)
    for column, derived in facts.opaque.items():
        # Training and serving refuse a row that cannot be read. Bytes of which none can are no
        # pictures, but sounds for instance.
        unreadable = float(facts.values[f"unreadable_share:{column}"] or 0)
        if round(unreadable * rows) < int(str(facts.values[f"values:{column}"])):
            claims.append(_claim(f"unreadable_share:{column}", column, high=0.0))
        if column in snapshot.task_columns.features:
            claims += _content_claims(column, snapshot, section, facts)
        for each in derived:
            claims += _leakage_claims(each, section, facts, is_content=is_content(each))
    for column, expectation in section.columns.items():
        claims += _declared_claims(column, expectation)
    for distance in facts.splits:
        hint = (
            f"{distance.split.value} rows have other values than training rows, by more than "
            "blocks of the data differ: the split follows something that changes; look at "
            "split.method"
        )
        high = distance.limit
        claims.append(_claim(distance.fact, distance.column, hint, high=high, severity="warning"))
    known = {*snapshot.described_features, *(each for d in facts.opaque.values() for each in d)}
    hint = "leakage_allow names no such feature: correct it or remove it"
    for name in sorted(set(section.leakage_allow) - known):
        claims.append(_claim(f"leakage_auc:{name}", name, hint, high=1.0, severity="warning"))
    return tuple(claims)


def _label_claims(
    snapshot: Snapshot, section: ExpectationsSection, facts: Facts
) -> Iterator[Claim]:
    label = snapshot.data.label
    yield _claim(
        f"missing_share:{label}",
        label,
        "fill the label at the source; if labels arrive late, raise "
        "expectations.max_missing_label_share",
        high=section.max_missing_label_share,
    )
    yield _claim("label_values", label, low=2)
    if f"infinite:{label}" in facts.values:
        hint = "an infinite label makes every loss infinite: fix the source"
        yield _claim(f"infinite:{label}", label, hint, high=0)
    if facts.label.kind == "classes":
        untrained = ", ".join(map(repr, facts.label.untrained[:5]))
        are_lists = facts.label.are_lists
        is_sure = _has_classes(snapshot, section, facts) and not are_lists
        remedy = (
            "each is a list of labels that have some: list the column under data.text, so that it "
            "is no class"
            if are_lists
            else "wait for more data, drop their rows, or set expectations.label_kind = "
            '"number" if the label is an amount, or list it under data.text if it is text to be '
            "written"
        )
        yield _claim(
            "untrained_classes",
            label,
            f"the classes {untrained} have no training row: {remedy}",
            high=0,
            severity="critical" if is_sure else "warning",
        )
        yield _claim("rarest_class_rows", label, low=section.min_class_rows, severity="warning")
        if alike := facts.label.look_alikes:
            # Letters are classes of their own in either case, so this cannot be critical.
            names = ", ".join(map(repr, sorted(alike)[:5]))
            hint = f"the classes {names} differ in case or spaces only: write one class one way"
            yield _claim("look_alike_classes", label, hint, high=0, severity="warning")


def _has_classes(snapshot: Snapshot, section: ExpectationsSection, facts: Facts) -> bool:
    """Whether the label's classes are no guess, which years of age and transcripts may disprove."""
    if section.label_kind != "auto":
        return True
    if snapshot.columns[snapshot.data.label].startswith(("Int", "UInt", "Float")):
        return facts.label.num_values <= SURE_CLASSES
    return facts.label.num_values <= _MOST_CLASSES_PER_ROW * int(str(facts.values["rows"]))


def _repeat_claims(
    snapshot: Snapshot, section: ExpectationsSection, facts: Facts
) -> Iterator[Claim]:
    data, most = snapshot.data, section.max_duplicate_share
    # Rows without a time or an id may well be equal without being the same.
    identified: Severity = "critical" if data.ids or data.time else "warning"
    yield _claim("duplicate_row_share", "rows", high=most, severity=identified)
    both = "features and label"
    yield _claim("overlap_beyond_chance", both, high=section.max_overlap_share)
    # Where most rows share features and label with others, contradictions are plain uncertainty.
    if float(facts.values["coarse_share"] or 0) < _COARSE_SHARE:
        conflicts = section.max_conflict_share
        yield _claim("conflict_share", both, high=conflicts, severity="warning")
    if data.ids:
        yield _claim("duplicate_id_share", "ids", high=most)
        yield _claim("overlap_id_share", "ids", high=section.max_overlap_share)
    if section.max_group_overlap_share is not None:
        shared = section.max_group_overlap_share
        yield _claim("overlap_group_share", data.group or "group", high=shared)
    if "future_rows" in facts.values:
        yield _claim("future_rows", data.time or "time", high=0)


def _role_claims(snapshot: Snapshot) -> Iterator[Claim]:
    data = snapshot.data
    hint = "a row without it cannot be assigned to a split or identified: fill it at the source"
    for column in filter(None, dict.fromkeys((data.time, data.group, *data.ids))):
        yield _claim(f"missing_share:{column}", column, hint, high=0)
    for feature in data.available_at:
        yield _claim(
            f"late_rows:{feature}",
            feature,
            f"its value became known after {data.time!r}: the model would see the future; take the "
            "value known at that time",
            high=0,
        )
        yield _claim(f"undated_rows:{feature}", feature, high=0, severity="warning")


def _feature_claims(feature: str, section: ExpectationsSection, facts: Facts) -> Iterator[Claim]:
    yield _claim(f"values:{feature}", feature, low=1)
    if feature not in section.columns or section.columns[feature].max_missing_share is None:
        yield _claim(
            f"missing_share:{feature}",
            feature,
            "find out why it is missing, or state its usual share as max_missing_share under "
            "[expectations.columns.NAME]",
            high=section.max_missing_share,
            severity="warning",
        )
    if f"infinite:{feature}" in facts.values:
        yield _claim(
            f"infinite:{feature}",
            feature,
            "one infinite value makes means and losses infinite: write null instead, often of a "
            "division by zero",
            high=0,
        )
    if facts.values.get(f"varies:{feature}") is not None:
        yield _claim(f"varies:{feature}", feature, low=1, severity="warning")
    if f"distinct_share:{feature}" in facts.values:
        most = section.max_distinct_share
        yield _claim(f"distinct_share:{feature}", feature, high=most, severity="warning")
    yield from _leakage_claims(feature, section, facts)


def _content_claims(
    column: str, snapshot: Snapshot, section: ExpectationsSection, facts: Facts
) -> Iterator[Claim]:
    """Claims on the contents of a column of pictures, lists or texts.

    Lists of zeros are usual where most lists hold a zero, as of rain or sales. Short lists may
    repeat, and of several columns of lists each may: shops share a weather.
    """
    features = snapshot.task_columns.features
    lists = [name for name in features if statistic(name, "missing") in facts.sample]
    is_list = column in lists
    low, length = (
        facts.sample[statistic(column, name)].median() if is_list else None
        for name in ("low", "length")
    )
    if low != 0:
        yield _claim(f"blank_share:{column}", column, high=_BLANK_SHARE, severity="warning")
    if not is_list or (len(lists) == 1 and cast(float, length or 0.0) >= _LONG_LIST):
        most = section.max_repeated_share
        yield _claim(f"repeated_share:{column}", column, high=most, severity="warning")


def _leakage_claims(
    feature: str, section: ExpectationsSection, facts: Facts, *, is_content: bool = False
) -> Iterator[Claim]:
    """Claims that no feature predicts the label alone; the width of a picture may, too."""
    auc = f"leakage_auc:{feature}"
    if auc in facts.values and feature not in section.leakage_allow:
        doubtful, leak = section.leakage_limits(facts.values, is_content=is_content)
        yield _claim(auc, feature, high=leak)
        yield _claim(auc, feature, high=doubtful, severity="warning")


def _declared_claims(column: str, limits: ColumnExpectation) -> Iterator[Claim]:
    limited = {
        "outside_share": limits.min is not None or limits.max is not None,
        "unlisted_share": bool(limits.allowed),
        "unmatched_share": bool(limits.matches),
    }
    for kind in (kind for kind, is_limited in limited.items() if is_limited):
        most = limits.max_bad_share
        yield _claim(f"{kind}:{column}", column, high=most, severity=limits.severity)
    if limits.max_missing_share is not None:
        hint = "more values are missing than usual: look at the source"
        most = limits.max_missing_share
        yield _claim(f"missing_share:{column}", column, hint, high=most, severity=limits.severity)
