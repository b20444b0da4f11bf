"""Healthy data passes without a word; every planted fault ends with a message that names it."""

import re
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from sklearn.datasets import load_breast_cancer

from perennial.contracts.data import Split
from perennial.contracts.errors import BadDataError
from perennial.contracts.validation import ValidationReport
from perennial.data.dataset import split_expression

HELD_OUT = pl.col("at").dt.day() > 25


def not_met(report: ValidationReport, *severities: str) -> set[tuple[str, str]]:
    return {
        (each.subject, each.expected.split(" at ")[0])
        for each in report.expectations
        if each.outcome != "passed"
        and each.severity in (severities or ("critical", "warning", "info"))
    }


def tumours() -> pl.DataFrame:
    """569 tumours; three of 30 measurements alone rank them by more than 0.95, others together
    by 0.97."""
    found = load_breast_cancer(as_frame=True).frame
    rows = pl.from_pandas(found).rename({"target": "label"})
    return rows.with_columns(id=pl.format("t{}", pl.int_range(rows.height)))


def copied_into_test(rows):
    """A fifth of the held-out rows become copies of training rows, under new ids and times."""
    train, held_out = rows.filter(~HELD_OUT), rows.filter(HELD_OUT)
    count = held_out.height // 5
    copies = train.head(count).with_columns(held_out.head(count).select("id", "at", "weather_at"))
    return pl.concat([train, copies, held_out.slice(count)])


def labelled_by_age(rows):
    """Years of age as labels, from 18 to 67; few rows, held out, have another one."""
    age = pl.col("visits") + 18 + pl.col("amount").hash(seed=1) % 31
    return rows.with_columns(
        label=pl.when(HELD_OUT & (pl.col("visits") == 3)).then(95).otherwise(age)
    )


def relabelled(rows, count=300):
    return pl.concat(
        [rows, rows.head(count).with_columns(pl.col("id") + "x", label=1 - pl.col("label"))]
    )


def written(otherwise):
    """A label of texts, of which the class `yes` is written in another way on every third visit."""
    yes = pl.when(pl.col("visits") % 3 == 0).then(otherwise).otherwise(pl.lit("yes"))
    return pl.when(pl.col("label") == 1).then(yes).otherwise(pl.lit("no"))


CRITICAL = {
    "one class": (lambda rows: rows.with_columns(label=1), ("label", "label values")),
    "labels missing": (
        lambda rows: rows.with_columns(label=pl.when(pl.col("visits") > 1).then("label")),
        ("label", "missing share"),
    ),
    "infinite number label": (
        lambda rows: rows.with_columns(
            label=pl.when(pl.col("visits") == 1).then(float("inf")).otherwise("amount")
        ),
        ("label", "infinite"),
    ),
    "a class that is never trained": (
        lambda rows: rows.with_columns(
            label=pl.when(HELD_OUT & (pl.col("visits") == 3)).then(7).otherwise("label")
        ),
        ("label", "untrained classes"),
    ),
    "all NaN": (lambda rows: rows.with_columns(amount=float("nan")), ("amount", "values")),
    "all null": (
        lambda rows: rows.with_columns(amount=pl.lit(None, pl.Float64)),
        ("amount", "values"),
    ),
    "infinite values": (
        lambda rows: rows.with_columns(
            amount=pl.when(pl.col("visits") == 0).then(float("-inf")).otherwise("amount")
        ),
        ("amount", "infinite"),
    ),
    "rows of the future": (
        lambda rows: rows.with_columns(
            at=pl.when(pl.col("id") == "r2999")
            .then(datetime.now(UTC).replace(tzinfo=None) + timedelta(days=3))
            .otherwise("at")
        ),
        ("at", "future rows"),
    ),
    "values known too late": (
        lambda rows: rows.with_columns(
            weather_at=pl.when(pl.col("visits") == 0)
            .then(pl.col("at") + timedelta(seconds=1))
            .otherwise("weather_at")
        ),
        ("weather", "late rows"),
    ),
    "a number that tells the label": (
        lambda rows: rows.with_columns(amount=pl.col("label") * 3.0 + pl.col("amount") / 100),
        ("amount", "leakage auc"),
    ),
    "a number that tells it at both ends": (
        lambda rows: rows.with_columns(
            amount=pl.when(pl.col("label") == 1)
            .then((pl.col("visits") % 2 - 0.5) * 9)
            .otherwise(0.0)
        ),
        ("amount", "leakage auc"),
    ),
    "missing where the label is one": (
        lambda rows: rows.with_columns(amount=pl.when(pl.col("label") == 0).then("amount")),
        ("amount", "leakage auc"),
    ),
    "a text that tells the label": (
        lambda rows: rows.with_columns(city=pl.col("city") + pl.col("label").cast(pl.String)),
        ("city", "leakage auc"),
    ),
    "repeated rows": (
        lambda rows: pl.concat([rows, rows.head(300)]),
        ("rows", "duplicate row share"),
    ),
    "repeated ids": (
        lambda rows: rows.with_columns(id=pl.col("id").str.slice(0, 3)),
        ("ids", "duplicate id share"),
    ),
    "training rows copied into test": (
        copied_into_test,
        ("features and label", "overlap beyond chance"),
    ),
    "a time that is missing": (
        lambda rows: rows.with_columns(at=pl.when(pl.col("visits") > 0).then("at")),
        ("at", "missing share"),
    ),
    "ids that are missing": (
        lambda rows: rows.with_columns(id=pl.when(pl.col("visits") > 0).then("id")),
        ("id", "missing share"),
    ),
    "too few rows": (lambda rows: rows.sample(400, seed=1), ("rows", "rows")),
}

WARNING = {
    "a constant number": (lambda rows: rows.with_columns(visits=4), ("visits", "varies")),
    "a constant text": (lambda rows: rows.with_columns(city=pl.lit("Ulm")), ("city", "varies")),
    "an identifier as a feature": (
        lambda rows: rows.with_columns(city=pl.col("id") + "!"),
        ("city", "distinct share"),
    ),
    "mostly missing": (
        lambda rows: rows.with_columns(weather=pl.when(pl.col("visits") == 0).then("weather")),
        ("weather", "missing share"),
    ),
    "values without their time": (
        lambda rows: rows.with_columns(weather_at=pl.lit(None, pl.Datetime("us"))),
        ("weather", "undated rows"),
    ),
    "contradicting labels": (relabelled, ("features and label", "conflict share")),
    "a rare class": (
        lambda rows: rows.with_columns(
            label=pl.when(pl.col("id").is_in(["r1", "r2", "r3"])).then(2).otherwise("label")
        ),
        ("label", "rarest class rows"),
    ),
    "a class written in two cases": (
        lambda rows: rows.with_columns(label=written(pl.lit("YES"))),
        ("label", "look alike classes"),
    ),
    "a class with a space behind it": (
        lambda rows: rows.with_columns(label=written(pl.lit("yes "))),
        ("label", "look alike classes"),
    ),
    "a strong feature": (
        lambda rows: rows.with_columns(amount=pl.col("label") * 11.0 + pl.col("amount")),
        ("amount", "leakage auc"),
    ),
}


class TestHealthyData:
    def test_passes_without_a_warning(self, validate, snapshot_of, healthy):
        result = validate(snapshot_of(healthy))
        report = ValidationReport.read(validate.out / "validation")
        assert not_met(report) == set()
        assert result.metrics["rows"] == 3_000
        page = (validate.out / "report").read_text()
        assert "Passed" in page
        assert "No feature is beyond the threshold." in page
        assert "probably recorded after the label" not in page

    def test_a_strong_feature_of_an_easy_problem_is_no_leak(self, validate, snapshot_of):
        validate(snapshot_of(tumours(), time=None, meta=()))
        report = ValidationReport.read(validate.out / "validation")
        assert not_met(report, "critical") == set()
        assert ("worst perimeter", "leakage auc") in not_met(report, "warning")

    def test_a_leak_tells_more_than_all_other_features_of_an_easy_problem(
        self, validate, snapshot_of
    ):
        biopsy = pl.col("label") + pl.col("id").str.slice(1).cast(pl.Int64) % 97 / 98
        rows = tumours().with_columns(biopsy=biopsy)
        with pytest.raises(BadDataError, match=r"biopsy: leakage auc"):
            validate(snapshot_of(rows, time=None, meta=()))
        report = ValidationReport.read(validate.out / "validation")
        assert not_met(report, "critical") == {("biopsy", "leakage auc")}

    @pytest.mark.parametrize(
        ("label", "kind"),
        [
            (pl.col("label").cast(pl.Boolean), "classes"),
            (pl.when(pl.col("label") == 1).then(pl.lit("yes")).otherwise(pl.lit("no")), "classes"),
            (pl.col("label").cast(pl.Float64), "classes"),
            (pl.col("label") + pl.col("visits") % 2, "classes"),
            (pl.col("amount") + 30 * pl.col("visits") * (pl.col("label") - 0.3), "number"),
            (pl.col("id").hash() % 100_000, "number"),
        ],
        ids=["boolean", "text", "float classes", "three classes", "number", "whole numbers"],
    )
    def test_any_kind_of_label_passes(self, validate, snapshot_of, healthy, label, kind):
        validate(snapshot_of(healthy.with_columns(label=label)), leakage_allow=["visits"])
        report = ValidationReport.read(validate.out / "validation")
        assert not_met(report) == set()
        assert report.facts["label_kind"] == kind

    @pytest.mark.parametrize("method", ["group", "hash"])
    def test_data_without_a_time_passes(self, validate, snapshot_of, healthy, method):
        roles = {"time": None, "available_at": {}, "meta": ("at", "weather_at", "weather")}
        group = {"group": "user"} if method == "group" else {"meta": (*roles["meta"], "user")}
        validate(snapshot_of(healthy, **(roles | group)))
        report = ValidationReport.read(validate.out / "validation")
        assert not_met(report) == set()
        (block,) = report.blocks
        assert (block.title, block.start, block.rows) == ("file part-000.parquet", None, 3000)

    def test_coarse_features_repeat_across_splits_by_chance(self, validate, snapshot_of, healthy):
        coarse = healthy.select("id", "at", "user", "city", pl.col("visits") % 3, "label")
        validate(snapshot_of(coarse))
        report = ValidationReport.read(validate.out / "validation")
        assert report.facts["overlap_share"] > 0.99
        assert report.facts["conflict_share"] > 0.99
        assert not_met(report) == set()

    @pytest.mark.parametrize("seed", range(4))
    def test_repeated_measurements_in_a_small_table_overlap_by_chance(
        self, validate, snapshot_of, healthy, seed
    ):
        rows = healthy.sample(1_000, seed=seed).drop("weather", "weather_at")
        again = rows.sample(200, seed=seed).with_columns(
            id=pl.col("id") + "again", at=pl.col("at").shuffle(seed=seed)
        )
        validate(snapshot_of(pl.concat([rows, again])), max_duplicate_share=0.2)
        assert not_met(ValidationReport.read(validate.out / "validation"), "critical") == set()


class TestPlantedFaults:
    @pytest.mark.parametrize("case", CRITICAL)
    def test_a_critical_fault_stops_the_run_and_is_named(
        self, validate, snapshot_of, healthy, case
    ):
        spoil, (subject, fact) = CRITICAL[case]
        with pytest.raises(BadDataError, match="not fit to train on") as caught:
            validate(snapshot_of(spoil(healthy)))
        assert f"{subject}: {fact} at" in caught.value.evidence
        assert f"{subject}: " in caught.value.action
        report = ValidationReport.read(validate.out / "validation")
        assert (subject, fact) in not_met(report, "critical")
        assert "Failed" in (validate.out / "report").read_text()

    @pytest.mark.parametrize("case", WARNING)
    def test_a_doubtful_fact_is_a_warning(self, validate, snapshot_of, healthy, case):
        spoil, expected = WARNING[case]
        result = validate(snapshot_of(spoil(healthy)))
        report = ValidationReport.read(validate.out / "validation")
        assert not_met(report) == {expected}
        assert "1 warning" in result.summary
        assert "Warning" in (validate.out / "report").read_text()

    def test_only_the_fault_is_named(self, validate, snapshot_of, healthy):
        spoil, fault = CRITICAL["values known too late"]
        with pytest.raises(BadDataError):
            validate(snapshot_of(spoil(healthy)))
        assert not_met(ValidationReport.read(validate.out / "validation")) == {fault}


OPTIONS = {
    "min_rows": ({"min_rows": 3_001}, ("rows", "rows")),
    "min_class_rows": ({"min_class_rows": 2_000}, ("label", "rarest class rows")),
    "max_missing_share": ({"max_missing_share": 0.05}, ("weather", "missing share")),
    "max_distinct_share": ({"max_distinct_share": 0.0001}, ("city", "distinct share")),
    "max_conflict_share": (
        {"max_conflict_share": 0.0},
        ("features and label", "conflict share"),
    ),
    "leakage_auc_warn": ({"leakage_auc_warn": 0.6}, ("amount", "leakage auc")),
    "leakage_auc_fail": (
        {"leakage_auc_warn": 0.6, "leakage_auc_fail": 0.6},
        ("amount", "leakage auc"),
    ),
    "leakage_allow": ({"leakage_allow": ["amuont"]}, ("amuont", "leakage auc")),
    "a limit": ({"columns": {"amount": {"max": 70.0}}}, ("amount", "outside share")),
    "a lower limit": ({"columns": {"visits": {"min": 1}}}, ("visits", "outside share")),
    "allowed texts": (
        {"columns": {"city": {"allowed": ["Ulm", "Bonn"]}}},
        ("city", "unlisted share"),
    ),
    "allowed numbers": ({"columns": {"visits": {"allowed": [1, 2]}}}, ("visits", "unlisted share")),
    "a pattern": ({"columns": {"user": {"matches": "u[0-9]"}}}, ("user", "unmatched share")),
    "a column's missing share": (
        {"columns": {"weather": {"max_missing_share": 0.1}}},
        ("weather", "missing share"),
    ),
    "a column that is not there": (
        {"columns": {"amuont": {"max": 1}}},
        ("amuont", "outside share"),
    ),
    "a limit on a text": ({"columns": {"city": {"max": 1}}}, ("city", "outside share")),
    "a pattern on a number": (
        {"columns": {"amount": {"matches": "x"}}},
        ("amount", "unmatched share"),
    ),
    "texts allowed for a number": (
        {"columns": {"visits": {"allowed": ["x"]}}},
        ("visits", "unlisted share"),
    ),
}
TOLERATED = {
    "allowed leak": ("a number that tells the label", {"leakage_allow": ["amount"]}),
    "late labels": ("labels missing", {"max_missing_label_share": 0.95, "min_class_rows": 1}),
    "repeats": ("repeated rows", {"max_duplicate_share": 0.2}),
    "copies": ("training rows copied into test", {"max_overlap_share": 0.5}),
}


class TestLabelKind:
    def test_many_whole_numbers_may_be_amounts_of_which_some_are_rare(
        self, validate, snapshot_of, healthy
    ):
        validate(snapshot_of(labelled_by_age(healthy)))
        report = ValidationReport.read(validate.out / "validation")
        assert not_met(report, "critical") == set()
        assert ("label", "untrained classes") in not_met(report, "warning")

    @pytest.mark.parametrize(("rare", "severity"), [("a,b", "warning"), ("a,d", "critical")])
    def test_lists_of_labels_that_are_trained_on_are_no_untrained_classes(
        self, validate, snapshot_of, healthy, rare, severity
    ):
        common = pl.when(pl.col("label") == 1).then(pl.lit("a")).otherwise(pl.lit("b,c"))
        last = pl.col("at") == pl.col("at").max()
        lists = healthy.with_columns(label=pl.when(last).then(pl.lit(rare)).otherwise(common))
        with suppress(BadDataError):
            validate(snapshot_of(lists))
        report = ValidationReport.read(validate.out / "validation")
        assert ("label", "untrained classes") in not_met(report, severity)
        hints = [each.hint for each in report.expectations if "no training row" in each.hint]
        assert ("list of labels" in hints[0]) == (severity == "warning")

    def test_many_whole_numbers_that_are_declared_as_classes_must_all_be_trained_on(
        self, validate, snapshot_of, healthy
    ):
        with pytest.raises(BadDataError, match=r"the classes '95.* have no training row"):
            validate(snapshot_of(labelled_by_age(healthy)), label_kind="classes")

    def test_many_whole_numbers_that_are_declared_as_amounts_have_no_classes(
        self, validate, snapshot_of, healthy
    ):
        validate(snapshot_of(labelled_by_age(healthy)), label_kind="number")
        assert not_met(ValidationReport.read(validate.out / "validation")) == set()


class TestRemedies:
    def test_the_share_of_rows_without_label_is_proposed_as_the_limit(
        self, validate, snapshot_of, healthy
    ):
        rows = healthy.with_columns(label=pl.when(pl.col("visits") > 1).then("label"))
        missing = rows["label"].null_count() / len(rows)
        with pytest.raises(BadDataError) as raised:
            validate(snapshot_of(rows))
        (proposed,) = re.findall(r"max_missing_label_share = ([\d.]+)", str(raised.value))
        assert missing < float(proposed) <= missing + 0.01
        validate(snapshot_of(rows), max_missing_label_share=float(proposed))


class TestOptions:
    @pytest.mark.parametrize("case", OPTIONS)
    def test_an_option_judges(self, validate, snapshot_of, healthy, case):
        options, expected = OPTIONS[case]
        rows = relabelled(healthy, 9) if case == "max_conflict_share" else healthy
        try:
            validate(snapshot_of(rows), **options)
        except BadDataError:
            assert expected in not_met(
                ValidationReport.read(validate.out / "validation"), "critical"
            )
        assert not_met(ValidationReport.read(validate.out / "validation")) == {expected}

    @pytest.mark.parametrize("case", TOLERATED)
    def test_an_option_tolerates(self, validate, snapshot_of, healthy, case):
        fault, options = TOLERATED[case]
        validate(snapshot_of(CRITICAL[fault][0](healthy)), **options)
        assert not_met(ValidationReport.read(validate.out / "validation"), "critical") == set()

    @pytest.mark.parametrize(
        "limits",
        [
            {"amount": {"min": -1e3, "max": 1e3}},
            {"city": {"allowed": ["Ulm", "Bonn", "Kiel"], "matches": "[A-Z][a-z]+"}},
            {"visits": {"allowed": list(range(20))}},
            {"amount": {"max": 70.0, "max_bad_share": 0.1}},
        ],
    )
    def test_limits_that_hold_pass(self, validate, snapshot_of, healthy, limits):
        validate(snapshot_of(healthy), columns=limits)
        assert not_met(ValidationReport.read(validate.out / "validation")) == set()

    def test_a_columns_severity_decides(self, validate, snapshot_of, healthy):
        result = validate(
            snapshot_of(healthy), columns={"amount": {"max": 60.0, "severity": "info"}}
        )
        assert "1 info" in result.summary
        assert "Passed" in (validate.out / "report").read_text()

    @pytest.mark.parametrize(("allowed", "passes"), [(None, True), (0.1, False), (1.0, True)])
    def test_group_overlap_is_limited_by_an_option(
        self, validate, snapshot_of, healthy, allowed, passes
    ):
        snapshot = snapshot_of(healthy, group="user")
        if passes:
            validate(snapshot, max_group_overlap_share=allowed)
        else:
            with pytest.raises(BadDataError, match="groups seen in training"):
                validate(snapshot, max_group_overlap_share=allowed)

    def test_what_cannot_be_evaluated_is_told_apart_from_what_failed(
        self, validate, snapshot_of, healthy
    ):
        with pytest.raises(BadDataError, match="not measured"):
            validate(snapshot_of(healthy), columns={"amuont": {"max": 1}, "amount": {"max": 1}})
        outcomes = {
            each.subject: each.outcome
            for each in ValidationReport.read(validate.out / "validation").expectations
            if each.expected.startswith("outside")
        }
        assert outcomes == {"amuont": "not_evaluated", "amount": "failed"}


def test_opens_no_connection(validate, snapshot_of, healthy, monkeypatch):
    tried = []

    def refuse(self, address):
        tried.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *query, **options: tried.append(query))
    validate(snapshot_of(healthy))
    assert tried == []


def test_the_page_loads_nothing_and_shows_pictures(validate, snapshot_of, healthy):
    validate(snapshot_of(healthy))
    page = (validate.out / "report").read_text()
    assert "src=" not in page
    assert "href=" not in page
    assert page.count("<svg") >= 6
    assert page.index("Verdict") < page.index("Facts") < page.index("Columns")


def test_the_page_counts_each_class_under_its_own_split(validate, snapshot_of, healthy):
    snapshot = snapshot_of(healthy)
    validate(snapshot)
    page = re.sub(r"<[^>]+>", " ", (validate.out / "report").read_text())
    split = healthy.select(split_expression(snapshot.data, snapshot.split)).to_series()
    expected = [
        str(healthy.filter((split == name) & (pl.col("label") == 1)).height) for name in Split
    ]
    shown = re.search(r"label\s+train\s+validation\s+test\s+1\s+([\d, ]+)", page)
    assert shown.group(1).replace(",", "").split()[:3] == expected


def test_the_page_lists_critical_failures_first(validate, snapshot_of, healthy):
    limits = {"amount": {"max": 1, "severity": "warning"}, "visits": {"max": 1}}
    with pytest.raises(BadDataError):
        validate(snapshot_of(healthy), columns=limits)
    page = (validate.out / "report").read_text()
    assert page.index(">critical</td>") < page.index(">warning</td>")
