"""The suite that the step writes is judged by plain Great Expectations on the raw rows."""

import contextlib
import json

import pandas as pd
import polars as pl
import pytest
from great_expectations import ExpectationSuite, ValidationDefinition, get_context

from perennial.contracts.errors import BadDataError

LIMITS = {
    "columns": {
        "amount": {"min": 0.0, "max": 120.0},
        "city": {"allowed": ["Ulm", "Bonn", "Kiel"], "matches": "[A-Z][a-z]+"},
        "weather": {"max_missing_share": 0.2},
    },
    "min_rows": 1_000,
}
CORRUPT = {
    "healthy": (lambda rows: rows, set()),
    "amounts missing": (lambda rows: rows.with_columns(amount=pl.lit(None, pl.Float64)), {"amount"}),
    "infinite": (
        lambda rows: rows.with_columns(
            amount=pl.when(pl.col("visits") == 1).then(float("inf")).otherwise("amount")
        ),
        {"amount"},
    ),
    "another unit": (lambda rows: rows.with_columns(amount=pl.col("amount") * 100), {"amount"}),
    "a new city": (
        lambda rows: rows.with_columns(
            city=pl.when(pl.col("visits") == 1).then(pl.lit("köln")).otherwise("city")
        ),
        {"city"},
    ),
    "one label": (lambda rows: rows.with_columns(label=1), {"label"}),
    "too few": (lambda rows: rows.head(800), {None}),
    "rows twice": (lambda rows: pl.concat([rows, rows.head(200)]), {"id", None}),
    "weather of later": (
        lambda rows: rows.with_columns(weather_at=pl.col("at") + pl.duration(hours=1)), {None}
    ),
}  # fmt: skip


def plain(path, frame):
    """Run a suite's file as its readers do, with nothing of ours."""
    document = json.loads(path.read_text())
    suite = ExpectationSuite(name=document["name"], expectations=document["expectations"])
    context = get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("raw").add_dataframe_asset("raw")
    definition = ValidationDefinition(
        name="raw",
        data=asset.add_batch_definition_whole_dataframe("raw"),
        suite=context.suites.add(suite),
    )
    result = context.validation_definitions.add(definition).run(
        batch_parameters={"dataframe": frame}
    )
    return [
        each.expectation_config.kwargs.get("column")
        for each in result.results
        if not each.success and each.expectation_config.severity == "critical"
    ]


@pytest.mark.parametrize("name", CORRUPT)
def test_plain_great_expectations_finds_what_the_step_found(
    name, healthy, snapshot_of, validate, tmp_path
):
    corrupt, expected = CORRUPT[name]
    rows = corrupt(healthy)
    rows.write_parquet(tmp_path / "rows.parquet")
    with contextlib.suppress(BadDataError):
        validate(snapshot_of(rows), **LIMITS)
    found = plain(validate.out / "perennial_suite", pd.read_parquet(tmp_path / "rows.parquet"))
    assert set(found) == expected


def test_what_it_cannot_say_is_listed_and_the_own_suite_is_in_it(healthy, snapshot_of, validate):
    own = {
        "type": "expect_column_max_to_be_between",
        "kwargs": {"column": "visits", "max_value": 99},
    }
    text = json.dumps({"name": "own", "expectations": [own]})
    validate(snapshot_of(healthy), suite=text, **LIMITS)
    document = json.loads((validate.out / "perennial_suite").read_text())
    assert len(document["expectations"]) > 20
    assert document["expectations"][-1]["kwargs"] == own["kwargs"]
    unsaid = " ".join(document["meta"]["not_expressed"])
    assert "overlap beyond chance" in unsaid
    assert "leakage auc" in unsaid
    assert "missing share" not in unsaid
