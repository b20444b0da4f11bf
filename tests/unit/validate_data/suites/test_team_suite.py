"""A contract's own suite: from the file that Great Expectations wrote to the report's verdicts."""

import hashlib
import json
import warnings

import polars as pl
import pytest

from perennial.cli import main
from perennial.contract import check_suite, load_contract, to_toml
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.contracts.validation import ValidationReport
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.suites import counts
from perennial.validate_data.suites.document import parse_suite, read_suite_file

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import great_expectations.expectations as gxe
    from great_expectations import ExpectationSuite
    from great_expectations.expectations.row_conditions import Column

CONTRACT = """
[model]
name = "clicks"
task = "perennial.tasks.tabular:TabularClassification"

[data]
uri = "data"
label = "clicked"
time = "shown_at"

[expectations]
suite = "suites/own.json"
"""

IN_ULM = Column("city") == "Ulm"


def written(*expectations):
    """The text of a suite, as Great Expectations itself writes it."""
    suite = ExpectationSuite(name="own", expectations=list(expectations))
    return json.dumps(suite.to_json_dict(), indent=2)


def amounts(high, **more):
    return gxe.ExpectColumnValuesToBeBetween(column="amount", min_value=0, max_value=high, **more)


def of_ulm(**more):
    return gxe.ExpectColumnValuesToBeBetween(
        column="amount", min_value=0, max_value=1, row_condition=IN_ULM, **more,
    )  # fmt: skip


def test_suite_travels_in_the_contract_and_changes_its_digest(tmp_path):
    (tmp_path / "suites").mkdir()
    path = tmp_path / "contract.toml"
    path.write_text(CONTRACT)
    (tmp_path / "suites" / "own.json").write_text(written(amounts(100)))
    contract = load_contract(path)
    assert parse_suite(contract.expectations.suite, "it").expectations[0].kwargs == {
        "column": "amount", "min_value": 0.0, "max_value": 100.0,
    }  # fmt: skip
    resolved = tmp_path / "resolved.toml"
    resolved.write_text(to_toml(contract))
    assert load_contract(resolved) == contract
    (tmp_path / "suites" / "own.json").write_text(written(amounts(200)))
    assert load_contract(path).digest() != contract.digest()
    (tmp_path / "suites" / "own.json").unlink()
    with pytest.raises(PerennialError, match=r"own\.json cannot be read"):
        load_contract(path)


def test_expectations_that_cannot_be_judged_are_named_with_their_line(tmp_path):
    (tmp_path / "suites").mkdir()
    path = tmp_path / "contract.toml"
    path.write_text(CONTRACT)
    text = written(
        amounts(100),
        gxe.UnexpectedRowsExpectation(unexpected_rows_query="SELECT * FROM {batch}"),
        gxe.ExpectColumnValuesToBeIncreasing(column="amount"),
        gxe.ExpectColumnMaxToBeBetween(column="amount", max_value={"$PARAMETER": "top"}),
    ).replace("expect_column_max_to_be_between", "expect_column_max_to_be_nice")
    (tmp_path / "suites" / "own.json").write_text(text)
    contract = load_contract(path)
    with pytest.raises(PerennialError) as refused:
        check_suite(path, contract)
    lines = text.splitlines()
    assert "3 of 4 expectations" in str(refused.value)
    for name in ("unexpected_rows", "to_be_increasing", "to_be_nice"):
        line = next(number for number, each in enumerate(lines, 1) if name in each)
        assert f"line {line - 1}, " in str(refused.value)


@pytest.mark.parametrize(("verb", "words"), [("deploy", []), ("submit", ["--reason", "new data"])])
def test_cluster_hears_of_no_contract_whose_suite_cannot_be_judged(
    tmp_path, monkeypatch, capsys, verb, words
):
    (tmp_path / "suites").mkdir()
    path = tmp_path / "contract.toml"
    path.write_text(CONTRACT)
    text = written(amounts(100), gxe.ExpectColumnValuesToBeIncreasing(column="amount"))
    (tmp_path / "suites" / "own.json").write_text(text)
    asked = []

    class Cluster:
        """Without anything that a deployment could ask for."""

        def __getattr__(self, name):
            asked.append(name)
            raise AttributeError(name)

    monkeypatch.setattr("perennial.deployment.verbs.connect_to", lambda profile: Cluster())
    assert main([verb, str(path), "--profile", "profile.toml", *words]) != 0
    printed = capsys.readouterr()
    assert "1 of 2 expectations of the suite cannot be judged here" in printed.out + printed.err
    assert asked == []


def test_each_split_is_compared_with_the_reference_of_the_suite(healthy, snapshot_of, validate):
    shares = {"values": ["Bonn", "Kiel", "Ulm"], "weights": [0.3, 0.2, 0.5]}
    text = written(
        gxe.ExpectColumnKLDivergenceToBeLessThan(
            column="city", partition_object=shares, threshold=0.2, tail_weight_holdout=0.01
        ),
        gxe.ExpectColumnKLDivergenceToBeLessThan(  # of too few rows to tell
            column="visits", partition_object={"values": [0, 1], "weights": [0.5, 0.5]},
            threshold=0.0001, severity="info",
        ),
    )  # fmt: skip
    late = pl.col("at").dt.day() > 25
    moved = healthy.with_columns(city=pl.when(late).then(pl.lit("Kiel")).otherwise("city"))
    validate(snapshot_of(moved, split={"method": "time", "test_fraction": 0.2}), suite=text)
    own = [e for e in ValidationReport.read(validate.out / "validation").expectations if e.basis]
    found = {each.subject: (each.outcome, each.severity) for each in own}
    assert found == {
        "city": ("passed", "critical"), "visits": ("failed", "info"),
        "city (train)": ("passed", "warning"), "city (validation)": ("passed", "warning"),
        "city (test)": ("failed", "warning"),
    }  # fmt: skip
    assert {each.basis.rpartition(" ")[2] for each in own[2:]} == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a suite"),
        ("[]", "is not a suite"),
        ('{"name": "x"}', "is not a suite"),
        ('{"name": "x", "expectations": [{"type": "a", "kwargs": {}, "other": 1}]}', "'other'"),
        ('{"name": "x", "expectations": [{"expectation_type": "a"}]}', "0.x"),
    ],
)
@pytest.mark.hostile
def test_what_is_not_a_suite_is_refused(tmp_path, text, message):
    (tmp_path / "own.json").write_text(text)
    with pytest.raises(PerennialError, match=message):
        read_suite_file(tmp_path / "own.json")


def test_critical_failure_stops_the_run_and_the_report_shows_the_basis(
    healthy, snapshot_of, validate
):
    text = written(
        amounts(200),
        amounts(60, severity="warning", mostly=0.99),
        gxe.ExpectColumnValuesToNotBeNull(column="city"),
        gxe.ExpectColumnValuesToBeInSet(column="city", value_set=["Ulm", "Bonn"]),
        of_ulm(severity="info"),
    )
    with pytest.raises(BadDataError, match="city: column values to be in set") as stopped:
        validate(snapshot_of(healthy), suite=text, suite_sample_rows=1_000)
    assert "1 critical expectations" in str(stopped.value)
    own = [e for e in ValidationReport.read(validate.out / "validation").expectations if e.basis]
    assert [(each.outcome, each.severity) for each in own] == [
        ("passed", "critical"), ("failed", "warning"), ("passed", "critical"),
        ("failed", "critical"), ("failed", "info"),
    ]  # fmt: skip
    assert [each.basis for each in own] == ["all rows"] * 4 + ["a random sample of 1,000 rows"]
    page = (validate.out / "report").read_text()
    assert "Your suite" in page
    assert "a random sample of 1,000 rows" in page


def test_suite_that_is_met_leaves_the_run_green(healthy, snapshot_of, validate):
    text = written(amounts(200), gxe.ExpectTableRowCountToBeBetween(min_value=1_000))
    assert "meet all" in validate(snapshot_of(healthy), suite=text).summary


def test_expectation_on_a_missing_column_is_not_evaluated_and_stops_the_run(
    healthy, snapshot_of, validate
):
    text = written(gxe.ExpectColumnValuesToNotBeNull(column="nowhere"))
    with pytest.raises(BadDataError, match="nowhere"):
        validate(snapshot_of(healthy), suite=text)


def test_what_a_sample_does_not_answer_is_refused_before_anything_is_measured(
    healthy, snapshot_of, validate
):
    text = written(
        gxe.ExpectColumnSumToBeBetween(column="amount", max_value=1e9, row_condition=IN_ULM)
    )
    with pytest.raises(PerennialError, match="a sample of rows does not answer it"):
        validate(snapshot_of(healthy), suite=text, suite_sample_rows=1_000)
    with pytest.raises(PerennialError, match="row_condition"):
        validate(snapshot_of(healthy), suite=text, suite_sample_rows=1_000)
    validate(snapshot_of(healthy), suite=text, suite_sample_rows=3_000)


def test_suite_in_a_store_is_pinned_by_its_digest(healthy, snapshot_of, validate, tmp_path):
    text = written(amounts(200))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "own.json").write_text(text)
    place = f"file://{tmp_path}/kept/own.json"
    digest = hashlib.sha256(text.encode()).hexdigest()
    validate(snapshot_of(healthy), suite=f"{place}#sha256={digest}")
    with pytest.raises(PerennialError, match="is not the one that the contract pins"):
        validate(snapshot_of(healthy), suite=f"{place}#sha256={'0' * 64}")
    with pytest.raises(PerennialError, match="there is no suite"):
        validate(snapshot_of(healthy), suite=f"{place}x#sha256={digest}")
    with pytest.raises(ValueError, match="does not pin its content"):
        ExpectationsSection(suite=place)


def test_wide_columns_are_left_out_of_the_sample(healthy, snapshot_of, validate):
    rows = healthy.with_columns(photo=pl.lit(b"x" * 10))
    text = written(of_ulm(severity="info"))
    validate(snapshot_of(rows, meta=("user", "photo")), suite=text)


@pytest.mark.parametrize("copies", [1, 2])
def test_uniqueness_of_too_many_values_is_judged_on_a_sample_of_values(
    monkeypatch, healthy, snapshot_of, validate, copies
):
    monkeypatch.setattr(counts, "MAX_VALUES", 500)
    text = written(
        gxe.ExpectColumnValuesToBeUnique(column="user", severity="warning"),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["at", "user"], severity="warning"),
        gxe.ExpectColumnMedianToBeBetween(column="amount", min_value=40, max_value=60),
    )
    users = [f"u{index // copies}" for index in range(healthy.height)]
    rows = healthy.with_columns(user=pl.Series(users))
    rows = rows.with_columns(at=pl.col("at").gather_every(copies).repeat_by(copies).explode())
    validate(snapshot_of(rows.head(healthy.height)), suite=text, max_duplicate_share=1.0)
    own = [e for e in ValidationReport.read(validate.out / "validation").expectations if e.basis]
    found = "passed" if copies == 1 else "failed"
    assert [each.outcome for each in own] == [found, found, "passed"]
    assert [each.basis for each in own] == [
        "a sample of 1 in 8 values, with all their rows"
        if copies == 1
        else "a sample of 1 in 4 values, with all their rows"
    ] * 2 + ["all rows"]
