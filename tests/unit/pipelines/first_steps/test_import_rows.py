"""Rows of a file or a frame become a new partition in the dataset's types, or nothing is written."""

import csv
import json
from datetime import datetime

import pandas as pd
import polars as pl
import pytest

from perennial.cli import main
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.first_steps.import_rows import import_rows

CONTRACT = """
[model]
name = "flights"
task = "perennial.tasks.tabular:TabularClassification"
[data]
uri = "data"
label = "late"
time = "departs"
ids = ["flight"]
"""
FIRST = pl.DataFrame(
    {
        "flight": [1, 2],
        "departs": [datetime(2025, 1, 1, 8), datetime(2025, 1, 2, 9)],
        "carrier": ["AA", "UA"],
        "miles": [300, 1200],
        "late": [0, 1],
    }
)
SECOND = FIRST.with_columns(flight=pl.col("flight") + 2, miles=pl.Series([None, 77]))


@pytest.fixture
def contract(tmp_path):
    (tmp_path / "data").mkdir()
    FIRST.write_parquet(tmp_path / "data" / "2025-01.parquet")
    (tmp_path / "contract.toml").write_text(CONTRACT)
    return tmp_path / "contract.toml"


def stored(contract, name="2025-02"):
    return pl.read_parquet(contract.parent / "data" / f"{name}.parquet")


def write(frame, path):
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix == ".csv":
        frame.write_csv(path)
    else:
        path.write_text("\n".join(json.dumps(row, default=str) for row in frame.to_dicts()))


def test_numbers_are_read_as_by_init_and_texts_stay_as_they_are(contract, tmp_path):
    path = tmp_path / "2025-02.csv"
    months = SECOND.with_columns(carrier=pl.lit("12,50"), miles=pl.Series(["1.300 €", "77,0 €"]))
    months.write_csv(path, separator=";")
    list(import_rows(contract, path))
    assert stored(contract)["miles"].to_list() == [1300, 77]
    assert stored(contract)["carrier"].to_list() == ["12,50", "12,50"]


@pytest.mark.parametrize("written", ["007", "1.50", "TRUE", "05/01/2025", "1e3"])
@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical])
def test_codes_that_look_like_numbers_or_dates_stay_as_they_are(written, dtype, contract, tmp_path):
    first = FIRST.with_columns(pl.col("carrier").cast(dtype))
    first.write_parquet(contract.parent / "data" / "2025-01.parquet")
    path = tmp_path / "2025-02.csv"
    SECOND.with_columns(carrier=pl.lit(written)).write_csv(path)
    list(import_rows(contract, path))
    assert stored(contract)["carrier"].to_list() == [written, written]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_file_takes_the_columns_and_types_of_the_dataset(ending, contract, tmp_path, capsys):
    path = tmp_path / f"2025-02.{ending}"
    write(
        SECOND.with_columns(remark=pl.lit("new")).select(sorted(["remark", *SECOND.columns])), path
    )
    assert main(["import", str(contract), str(path)]) == 0
    assert stored(contract).equals(SECOND)
    assert stored(contract).schema == FIRST.schema
    printed = capsys.readouterr().out
    assert "2 rows, 5 columns" in printed
    assert "left out, as the dataset has no such columns: remark" in printed


def test_a_frame_of_pandas_becomes_a_partition_of_its_name(contract):
    frame = pd.DataFrame(SECOND.to_dicts())
    assert list(import_rows(contract, frame, name="month=2025-02/flights"))
    assert stored(contract, "month=2025-02/flights").equals(SECOND)


def test_rows_that_init_counted_are_counted_on(tmp_path):
    """`perennial init` wrote the ids, which no later file has."""
    rows = pl.DataFrame({"miles": [at % 100 for at in range(200)], "late": [0, 1] * 100})
    rows[:160].write_csv(tmp_path / "first.csv")
    assert main(["init", "table", str(tmp_path / "first.csv"), "--label", "late", "--out",
                 str(tmp_path / "model")]) == 0  # fmt: skip
    contract = tmp_path / "model" / "contract.toml"
    for number, part in enumerate((rows[160:180], rows[180:])):
        part.write_csv(tmp_path / f"more-{number}.csv")
        assert main(["import", str(contract), str(tmp_path / f"more-{number}.csv")]) == 0
    every = pl.read_parquet(contract.parent / "data" / "*.parquet")
    assert every.select(pl.col("row_id").sort()).to_series().to_list() == list(range(200))
    assert every.sort("row_id")["miles"].to_list() == rows["miles"].to_list()


def test_the_first_rows_of_a_dataset_keep_their_types(contract):
    (contract.parent / "data" / "2025-01.parquet").unlink()
    list(import_rows(contract, SECOND.to_pandas(), name="2025-02"))
    assert stored(contract).height == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.drop("late"), "lack the columns late"),
        (
            lambda t: t.with_columns(flight=pl.col("flight") + 0.5),
            "'flight' cannot be read as Int64",
        ),
        (lambda t: t.with_columns(departs=pl.lit("soon")), "'departs' cannot be read as Datetime"),
        (lambda t: t.with_columns(miles=pl.lit("far")), "'miles' cannot be read as Int64"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(
    change, problem, contract, tmp_path
):
    change(SECOND).write_parquet(tmp_path / "2025-02.parquet")
    with pytest.raises(BadDataError, match=problem):
        list(import_rows(contract, tmp_path / "2025-02.parquet"))
    assert [path.name for path in (contract.parent / "data").rglob("*")] == ["2025-01.parquet"]


HEAD = "flight,departs,carrier,miles,late\n"
WHOLE = "3,2025-02-01T08:00:00,AA,300,0\n"


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.csv", HEAD + WHOLE + "4,2025-02-02T08:00:00,A", "is cut off: its last row has 3 cells"),
        ("x.csv", HEAD + "3,2025-02-01T08:00:00,AA,300,0,7\n" + WHOLE, "cannot read .*x.csv"),
        ("x.csv", "", "cannot read .*x.csv"),
        ("x.csv", HEAD, "there are no rows to import"),
        ("x.json", '[{"flight": 3, "miles": NaN}]', "cannot read .*x.json"),
    ],
)
def test_a_file_that_is_cut_off_or_broken_is_named(name, content, problem, contract, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(BadDataError, match=problem):
        list(import_rows(contract, tmp_path / name))
    assert [path.name for path in (contract.parent / "data").rglob("*")] == ["2025-01.parquet"]


def test_what_is_read_as_missing_or_in_another_zone_is_noted(contract, tmp_path):
    """Empty lines are no rows, and a carrier may have the name NA."""
    rows = WHOLE.replace("AA", "NA").replace(":00,", ":00+02:00,") + "\n\n" + (
        "4,2025-02-02T08:00:00+02:00,UA,,1\n5,2025-02-02T08:00:00+02:00\n" * 2
        + "6,2025-02-02T08:00:00Z,,5,1\n"
    )  # fmt: skip
    (tmp_path / "2025-02.csv").write_text(HEAD + rows)
    limit = csv.field_size_limit()
    notes = list(import_rows(contract, tmp_path / "2025-02.csv"))
    assert csv.field_size_limit() == limit, "by which other files are read"
    assert stored(contract).height == 6
    assert "read: 'NA' in 'carrier' is a missing value, 1 times" in "\n".join(notes)
    assert "read: 2 rows have fewer cells than the header" in "\n".join(notes)
    assert "times: 'departs' has offsets, and the dataset none" in "\n".join(notes)


def test_dates_of_two_readings_are_refused(contract, tmp_path):
    path = tmp_path / "2025-02.csv"
    SECOND.with_columns(departs=pl.lit("03/04/2025")).write_csv(path)
    with pytest.raises(BadDataError, match="'departs' can be read in two ways"):
        list(import_rows(contract, path))


@pytest.mark.parametrize("name", ["_2025-02", ".2025-02", "_new/2025-02", "../2025-02", "/2025-02"])
def test_rows_are_not_written_where_they_would_never_be_read(name, contract, tmp_path):
    SECOND.write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(PerennialError, match="would never be read"):
        list(import_rows(contract, tmp_path / "rows.parquet", name=name))
    assert [path.name for path in (contract.parent / "data").rglob("*")] == ["2025-01.parquet"]


def test_a_folder_of_a_partition_may_start_with_an_underscore(contract, tmp_path):
    SECOND.write_parquet(tmp_path / "_month=2025-02.parquet")
    list(import_rows(contract, tmp_path / "_month=2025-02.parquet"))
    assert stored(contract, "_month=2025-02").equals(SECOND)


def test_a_partition_is_never_replaced_and_a_frame_needs_a_name(contract, tmp_path):
    SECOND.write_parquet(tmp_path / "2025-01.parquet")
    with pytest.raises(PerennialError, match=r"has a partition 2025-01.parquet already"):
        list(import_rows(contract, tmp_path / "2025-01.parquet"))
    with pytest.raises(PerennialError, match="need a name"):
        list(import_rows(contract, SECOND.to_pandas()))
    assert stored(contract, "2025-01").equals(FIRST)
