"""`perennial init` on other people's data: what it takes a column for, and what it refuses."""

import datetime as dt
import io
import json
import math
import runpy
import tomllib
from pathlib import Path

import jsonschema
import polars as pl
import pytest
import torch
from PIL import Image

from perennial.cli import main
from perennial.clients.object_store import open_store
from perennial.contract import load_contract
from perennial.contracts.data import TaskColumns
from perennial.data.partitions import find_partitions
from perennial.first_steps import first_contract
from perennial.first_steps.first_contract import schema_text

ROOT = Path(__file__).resolve().parents[4]
ROWS = 400


def table(**columns):
    """A table with a number, a category and a label, and what a test adds."""
    days = [dt.datetime(2025, 1, 1) + dt.timedelta(hours=6 * row) for row in range(ROWS)]
    usual = {
        "when": days,
        "amount": [float(row % 37) for row in range(ROWS)],
        "country": [("de", "fr", "it")[row % 3] for row in range(ROWS)],
        "late": [row % 5 == 0 for row in range(ROWS)],
    }
    return pl.DataFrame(usual | columns)


@pytest.fixture
def init(tmp_path, capsys):
    """Runs `init` on a table; gives the contract as written, and what was printed."""

    def run(frame, *arguments, kind="table", code=0, file="orders.csv"):
        source = tmp_path / file
        write = frame.write_csv if file.endswith("csv") else frame.write_parquet
        write(source)
        out = tmp_path / "own"
        assert main(["init", kind, str(source), "--out", str(out), *arguments]) == code
        printed = capsys.readouterr()
        if code:
            assert not (out / "contract.toml").exists()
            return {}, printed.err
        load_contract(out / "contract.toml")
        text = (out / "contract.toml").read_text()
        assert text.startswith("#:schema ./contract.schema.json\n")
        schema = json.loads((out / "contract.schema.json").read_text())
        jsonschema.validate(tomllib.loads(text), schema)
        return tomllib.loads(text), printed.out

    return run


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (lambda row: f"{row % 97},5", lambda row: row % 97 + 0.5),
        (lambda row: f"1.{100 + row % 97},25 €", lambda row: 1100.25 + row % 97),
        (lambda row: f"$1,{100 + row % 97}.50", lambda row: 1100.5 + row % 97),
        (lambda row: f"-1'{100 + row % 97}.5 CHF", lambda row: -1100.5 - row % 97),
        (lambda row: f"{row % 97} %", lambda row: float(row % 97)),
        (lambda row: f"{row % 97}.5{' €' * (row % 2)}", lambda row: row % 97 + 0.5),
        (
            lambda row: "" if row % 7 == 0 else f"{row},5",
            lambda row: row + 0.5 if row % 7 else None,
        ),
        (
            lambda row: (" ", "?", "\t?", "n/a")[row // 5 % 4] if row % 5 == 0 else f"{row}",
            lambda row: row if row % 5 else None,
        ),
    ],
    ids=["comma", "euros", "dollars", "francs", "percent", "some euros", "missing", "marked"],
)
def test_numbers_as_people_write_them_are_numbers(init, tmp_path, write, read):
    contract, printed = init(table(price=[write(row) for row in range(ROWS)]), "--label", "late")
    assert "price" not in contract["data"].get("meta", [])
    assert "numbers: 'price'" in printed
    prices = pl.read_parquet(tmp_path / "own/data/orders.parquet")["price"]
    assert prices.to_list() == [read(row) for row in range(ROWS)]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda row: "none yet" if row == 3 else f"{row},5", "1 of 400 values are not numbers, such as 'none yet'"),
        (lambda row: f"1,{row + 100}", "can be read in two ways"),
        (lambda row: f"{row} {'€$'[row % 2]}", "has numbers in EUR and USD: write them in one unit"),
        (lambda row: f"{row}%" if row % 2 else f"0.{row:03}", "has numbers in % and no unit"),
        (lambda row: f"0{row}-{row}", "values are too many for a category"),
    ],
    ids=["an exception", "two readings", "two units", "shares in two units", "numbers of telephones"],
)  # fmt: skip
def test_texts_that_are_not_surely_numbers_stay_texts(init, tmp_path, write, said):
    prices = [write(row) for row in range(ROWS)]
    contract, printed = init(table(price=[*prices[:-1], prices[0]]), "--label", "late")
    assert contract["data"]["meta"] == ["price"]
    assert said in printed
    stored = pl.read_parquet(tmp_path / "own/data/orders.parquet")["price"]
    assert stored.dtype == pl.String


@pytest.mark.parametrize(
    ("write", "dtype"),
    [
        (lambda row: f"{1234567890123456000 + row}", pl.Int64),
        (lambda row: f"{98765432109876543200 + row}", pl.String),
        (lambda row: f"{row:05}", pl.String),
    ],
    ids=["19 digits", "20 digits", "zeros in front"],
)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_digits_that_are_texts_keep_every_digit(tmp_path, ending, write, dtype):
    codes = [write(row) for row in range(ROWS)]
    frame = table(code_id=codes, grade=[str(1 + row % 5) for row in range(ROWS)]).drop("when")
    source, out = tmp_path / f"orders.{ending}", tmp_path / "own"
    (frame.write_ndjson if ending == "jsonl" else frame.write_parquet)(source)
    assert main(["init", "table", str(source), "--label", "grade", "--out", str(out)]) == 0
    contract = tomllib.loads((out / "contract.toml").read_text())
    # Rows are split by the hash of this column: as fractions, many ids would be one.
    assert contract["data"]["ids"] == ["code_id"]
    assert contract["model"]["task"].endswith("TabularClassification")
    stored = pl.read_parquet(out / "data/orders.parquet")
    assert stored.schema["code_id"] == dtype
    assert stored["code_id"].cast(pl.String).to_list() == codes


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_whole_numbers_beyond_64_bits_are_stored_as_texts(tmp_path, ending):
    codes = [98765432109876543200 + row for row in range(ROWS)]
    lines = [f"{code},{row % 7},{row % 2}" for row, code in enumerate(codes)]
    if ending == "jsonl":
        named = [zip(("card", "amount", "late"), line.split(","), strict=True) for line in lines]
        lines = ["{" + ",".join(f'"{name}":{value}' for name, value in row) + "}" for row in named]
    else:
        lines = ["card,amount,late", *lines]
    (tmp_path / f"cards.{ending}").write_text("\n".join(lines))
    data, out = str(tmp_path / f"cards.{ending}"), str(tmp_path / "own")
    assert main(["init", "table", data, "--label", "late", "--out", out]) == 0
    stored = pl.read_parquet(tmp_path / "own/data/cards.parquet")
    assert stored["card"].to_list() == [str(code) for code in codes]
    assert tomllib.loads((tmp_path / "own/contract.toml").read_text())["data"]["ids"] == ["card"]


def test_columns_of_a_csv_get_their_roles(init):
    frame = table(
        order_id=[f"o{row}" for row in range(ROWS)],
        note=[f"something else {row // 2}" for row in range(ROWS)],
        empty=[None] * ROWS,
        store_id=[row % 4 for row in range(ROWS)],
        user_id=[row % 190 for row in range(ROWS)],
    )
    contract, printed = init(frame, "--label", "late")
    assert contract["data"] == {
        "uri": "data",
        "label": "late",
        "time": "when",
        "ids": ["order_id"],
        "meta": ["note", "empty", "user_id"],
    }
    assert contract["model"]["task"] == "perennial.tasks.tabular:TabularClassification"
    assert contract["model"]["options"] == {"categorical": ["store_id"]}
    assert "label: 'late', 2 classes" in printed
    assert "perennial run" in printed


def test_a_few_categories_of_which_most_are_digits_are_no_failed_numbers(init):
    children = ["3+" if row % 20 == 0 else str(row % 3) for row in range(ROWS)]
    contract, printed = init(table(children=children), "--label", "late")
    assert "children" not in contract["data"].get("meta", [])
    assert "not numbers" not in printed


@pytest.mark.parametrize(("share", "is_feature"), [(0.7, True), (0.3, False)])
def test_a_category_of_many_rare_values_is_a_feature_where_frequent_ones_prevail(
    share, is_feature, init
):
    cities = [
        ("Berlin", "Bonn")[row % 2] if row < share * ROWS else f"c{row}" for row in range(ROWS)
    ]
    contract, _ = init(table(city=cities), "--label", "late")
    assert ("city" not in contract["data"].get("meta", [])) is is_feature


def test_numbers_of_rows_are_ids_although_some_are_missing(init):
    frame = table(record=[row + row // 5 for row in range(ROWS)]).drop("when")
    contract, _ = init(frame, "--label", "late")
    assert contract["data"]["ids"] == ["record"]


def test_measurements_without_a_repetition_are_no_ids(init):
    frame = table(size=[row * 97 % 10_007 for row in range(ROWS)]).drop("when")
    contract, _ = init(frame, "--label", "late")
    assert contract["data"]["ids"] == ["row_id"]


def test_a_date_of_birth_does_not_split(init):
    days = [dt.date(1960, 1, 1) + dt.timedelta(days=17 * row) for row in range(ROWS)]
    contract, printed = init(table(DOB=days).drop("when"), "--label", "late")
    assert "time" not in contract["data"]
    assert "meta: 'DOB', a date of birth" in printed


@pytest.mark.parametrize(
    ("written", "first"),
    [
        ("%d/%m/%y", "1993-08-14"),  # which Polars reads as of the year 93
        ("%m/%d/%Y", "1993-08-14"),
        ("%d.%m.%Y", "1993-08-14"),
    ],
)
def test_dates_as_people_write_them_split(written, first, init, tmp_path):
    start = dt.date(1993, 8, 14)
    days = [(start + dt.timedelta(days=row)).strftime(written) for row in range(ROWS)]
    contract, printed = init(table(day=days).drop("when"), "--label", "late")
    assert contract["data"]["time"] == "day"
    assert "dates: 'day', written as" in printed or "%d." in written
    stored = pl.read_parquet(tmp_path / "own/data/orders.parquet")["day"]
    assert str(stored.min()) == first


def test_first_days_of_months_are_not_read_as_days_of_one_month(init):
    """01/02/2013 has two readings, and none is taken silently."""
    days = [f"{1 + row % 12:02}/01/{1990 + row // 12}" for row in range(ROWS)]
    contract, printed = init(table(day=days).drop("when"), "--label", "late")
    assert "time" not in contract["data"]
    assert "'day' has dates that can be read in two ways" in printed


@pytest.mark.parametrize(
    ("encode", "said"),
    [
        (lambda text: text.encode("cp1252"), "'data.csv' as cp1252, as it is not UTF-8"),
        (lambda text: text.encode("utf-16"), "'data.csv' as utf-16, as it is not UTF-8"),
        (lambda text: text.replace("\n", "\r").encode(), "label: 'late'"),
    ],
    ids=["windows", "excel", "old lines"],
)
def test_files_of_old_programs_are_read(encode, said, tmp_path, capsys):
    frame = table(town=["Köln" if row % 2 else "Málaga" for row in range(ROWS)])
    (tmp_path / "data.csv").write_bytes(encode(frame.write_csv()))
    out = tmp_path / "own"
    arguments = ["--label", "late", "--out", str(out)]
    assert main(["init", "table", str(tmp_path / "data.csv"), *arguments]) == 0
    assert said in capsys.readouterr().out
    assert pl.read_parquet(out / "data/data.parquet").select(frame.columns).equals(frame)


def test_an_amount_is_a_regression(init):
    contract, printed = init(table().drop("late").rename({"amount": "target"}))
    assert contract["model"]["task"].endswith("TabularRegression")
    assert "label: 'target', a number" in printed


def test_a_column_that_identifies_rows_is_added_where_there_is_none(init, tmp_path):
    contract, printed = init(table().drop("when"), "--label", "late")
    assert contract["data"]["ids"] == ["row_id"]
    assert "added" in printed
    assert pl.read_parquet(tmp_path / "own/data/orders.parquet")["row_id"].is_unique().all()


def test_a_table_saved_by_pandas_keeps_its_index_as_row_id(init):
    frame = table().drop("when").with_row_index("")
    contract, _ = init(frame, "--label", "late")
    assert contract["data"]["ids"] == ["row_id"]


def test_days_too_few_to_judge_by_do_not_split(init):
    short = table(when=[dt.date(2025, 1, 1 + row % 20) for row in range(ROWS)])
    contract, printed = init(short, "--label", "late")
    assert "time" not in contract["data"]
    assert "its 19 days are too few to split by" in printed


def test_parquet_in_a_folder_is_used_in_place(tmp_path):
    folder = tmp_path / "own" / "events"
    folder.mkdir(parents=True)
    table().write_parquet(folder / "2025.parquet")
    assert (
        main(["init", "table", str(folder), "--label", "late", "--out", str(tmp_path / "own")]) == 0
    )
    contract = tomllib.loads((tmp_path / "own" / "contract.toml").read_text())
    assert contract["data"]["uri"] == "events"
    assert contract["model"]["name"] == "events"


@pytest.mark.parametrize("other", ["2024.parquet", "old/2024.pq"])
def test_rows_are_not_written_beside_other_data(init, tmp_path, other):
    (tmp_path / "own" / "data" / other).parent.mkdir(parents=True)
    table().write_parquet(tmp_path / "own" / "data" / other)
    _, error = init(table(), "--label", "late", code=2)
    assert f"such as {other}; nothing was written" in error
    assert [each.name for each in (tmp_path / "own").rglob("*.p*q*")] == [Path(other).name]


def test_rows_are_written_beside_the_file_that_they_come_from(tmp_path):
    source = tmp_path / "data" / "_orders.csv"
    source.parent.mkdir()
    table().write_csv(source)
    assert main(["init", "table", str(source), "--label", "late", "--out", str(tmp_path)]) == 0
    (partition,) = find_partitions(open_store(str(tmp_path / "data"))).partitions
    assert partition.key == "orders.parquet"


def test_lists_are_features_where_they_hold_numbers(init):
    lists = table(window=[[1.0 * row, 2.0 * row] for row in range(ROWS)], tags=[["a", "b"]] * ROWS)
    contract, printed = init(lists, "--label", "late", file="orders.parquet")
    assert contract["data"]["meta"] == ["tags"]
    assert "feature: 'window', windows of numbers" in printed


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_seen(separator, tmp_path):
    source = tmp_path / "x.csv"
    table().write_csv(source, separator=separator)
    assert (
        main(["init", "table", str(source), "--label", "late", "--out", str(tmp_path / "o")]) == 0
    )


def test_nothing_is_overwritten(init, tmp_path, capsys):
    init(table(), "--label", "late")
    contract = tmp_path / "own" / "contract.toml"
    contract.write_text("mine")
    assert main(["init", "table", str(tmp_path / "orders.csv"), "--label", "late", "--out", str(contract.parent)]) == 2  # fmt: skip
    assert "exists already" in capsys.readouterr().err
    assert contract.read_text() == "mine"


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("frame", "arguments", "message"),
    [
        (table(), (), "which column is to be predicted"),
        (table(), ("--label", "late", "--name", "My Orders"), "write --name my-orders"),
        (table(), ("--label", "lat"), "there is no column 'lat'"),
        (table(), ("--label", "countyr"), "write --label country"),
        (table(), ("--label", "late", "--time", "whne"), "write --time when"),
        (table(), ("--label", "when"), "cannot be predicted"),
        (table(label=["a"] * ROWS), (), "1 different values"),
        (table(), ("--label", "late", "--time", "country"), "is not a time"),
        (table().head(20), ("--label", "late"), "20 rows are too few"),
        (table(id=[f"x{row}" for row in range(ROWS)]), ("--label", "id"), "too many classes"),
        (table().select("late", "when"), ("--label", "late"), "no column is left to learn from"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_the_option_to_write(
    init, frame, arguments, message
):
    _, error = init(frame, *arguments, code=2)
    assert message in error
    assert "to do:" in error


@pytest.mark.hostile
def test_a_file_that_is_no_table_is_refused(tmp_path, capsys):
    for name, content in (
        ("a.csv", b"\xff\xfe\x00"),
        ("b.parquet", b"x"),
        ("c.txt", b"x"),
        ("d.csv", b""),
    ):
        (tmp_path / name).write_bytes(content)
        code = main(
            ["init", "table", str(tmp_path / name), "--label", "y", "--out", str(tmp_path / "o")]
        )
        assert code == 2, name
        assert "unexpected error" not in capsys.readouterr().err
    assert not (tmp_path / "o" / "contract.toml").exists()


def test_pictures_come_as_files_by_class_as_paths_or_as_bytes(init, tmp_path):
    for row in range(ROWS):
        folder = tmp_path / "pets" / ("cat", "dog")[row % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80 + row % 3, 90), (row % 256, 0, 0)).save(folder / f"{row}.png")
    assert main(["init", "image", str(tmp_path / "pets"), "--out", str(tmp_path / "byclass")]) == 0
    contract = tomllib.loads((tmp_path / "byclass" / "contract.toml").read_text())
    assert contract["model"]["options"] == {"size": [64, 64]}
    assert contract["data"] | {"uri": ""} == {
        "uri": "", "label": "label", "ids": ["row_id"], "features": ["picture"],
    }  # fmt: skip
    paths = [f"pets/{('cat', 'dog')[row % 2]}/{row}.png" for row in range(ROWS)]
    contract, _ = init(table(file=paths), "--label", "country", kind="image")
    assert contract["data"]["features"] == ["file"]
    stored = pl.read_parquet(tmp_path / "own/data/orders.parquet")["file"]
    assert Image.open(io.BytesIO(stored[0])).size == (80, 90)


def test_a_picture_that_is_missing_is_named(init):
    _, error = init(table(file=["no/1.png"] * ROWS), "--label", "country", kind="image", code=2)
    assert "no/1.png" in error


def test_limits_are_lowered_for_few_rows_and_report_it(init, tmp_path):
    contract, _ = init(table(), "--label", "late")
    assert contract["expectations"] == {"min_rows": ROWS}
    assert contract["gate"] == {"min_test_rows": 80}
    written = (tmp_path / "own" / "contract.toml").read_text()
    assert "# intervals are wide below the usual 200" in written


def test_whole_numbers_that_may_be_taken_for_classes_are_declared_as_amounts(init):
    contract, printed = init(table(label=[18 + row % 61 for row in range(ROWS)]))
    assert "label: 'label', a number" in printed
    assert contract["model"]["task"].endswith("TabularRegression")
    assert contract["expectations"]["label_kind"] == "number"


def test_a_label_of_two_floats_is_a_class(init):
    contract, _ = init(table(label=[float(row % 2) for row in range(ROWS)]))
    assert contract["model"]["task"].endswith("TabularClassification")


@pytest.mark.parametrize(("days", "period"), [(1, None), (2, None), (7, "quarter"), (30.4, "year")])
def test_the_period_that_is_cut_holds_enough_times(days, period, init):
    times = [dt.datetime(2001, 1, 1) + dt.timedelta(days=days * row) for row in range(ROWS)]
    contract, _ = init(table(when=times), "--label", "late")
    assert contract.get("split", {}).get("period") == period


def test_an_incomplete_time_does_not_split(init):
    when = table()["when"].to_list()
    contract, printed = init(table(when=[None, *when[1:]]), "--label", "late")
    assert "time" not in contract["data"]
    assert "meta: 'when', 1 of 400 rows lack it" in printed


def test_the_file_of_a_task_hides_no_module_of_python(init, tmp_path):
    contract, _ = init(table(), "--label", "late", kind="custom", file="calendar.csv")
    assert contract["model"] == {"name": "calendar", "task": "calendar_task:FirstTask"}
    assert (tmp_path / "own" / "calendar_task.py").exists()


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([0.1] * 30, [0.1, 0.2]),
        ([None] * 30, [0.1, 0.2]),
        ([*[0.1, 0.3] * 14, None, math.nan], [-1.0, 0.0]),
    ],
    ids=["one value", "no value", "two values"],
)
def test_the_first_task_keeps_later_values_in_proportion(known, expected, init, tmp_path):
    init(table(), "--label", "late", kind="custom")
    module = runpy.run_path(str(tmp_path / "own" / "orders_task.py"))
    columns = TaskColumns(label="late", features={"amount": "Float64"})
    task = module["FirstTask"](module["FirstTask"].Options(), columns)
    train = pl.DataFrame({"amount": known, "late": ["no", "yes"] * 15})
    task.fit(train.with_columns(pl.col("amount").cast(pl.Float64)).lazy())
    inputs = task.encode(pl.DataFrame({"amount": [0.1, 0.2]}))["inputs"]
    moved = inputs[:, 0] - inputs[0, 0] + expected[0]
    assert moved.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_first_task_marks_as_missing_only_what_may_be(init, tmp_path):
    """A mark that is 0 in all rows is an input without effect, of which the sanity checks warn."""
    init(table(), "--label", "late", kind="custom")
    module = runpy.run_path(str(tmp_path / "own" / "orders_task.py"))
    features = {"amount": "Float64", "color": "String", "size": "Int64"}
    task = module["FirstTask"](
        module["FirstTask"].Options(), TaskColumns(label="late", features=features)
    )
    train = pl.DataFrame(
        {
            "amount": [0.1, None, 0.3] * 20,
            "color": ["red", None, "blue"] * 20,
            "size": [1, 2, 3] * 20,
            "late": ["no", "yes"] * 30,
        }
    )
    task.fit(train.lazy())
    inputs = task.encode(train)["inputs"]
    assert inputs.shape == (60, 3 + 3)
    assert (inputs.std(dim=0) > 0).all()
    assert task.build_model()(inputs).shape == (60, 2)
    later = pl.DataFrame({"amount": [0.1], "color": ["green"], "size": [None]})
    assert torch.isfinite(task.encode(later)["inputs"]).all()


def test_a_person_at_a_terminal_is_asked_for_the_label(tmp_path, monkeypatch, capsys):
    table().write_csv(tmp_path / "x.csv")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda question, default: default)
    assert main(["init", "table", str(tmp_path / "x.csv"), "--out", str(tmp_path / "o")]) == 0
    assert "label: 'late'" in capsys.readouterr().out


def test_text_is_the_longest_column(init):
    contract, _ = init(table(story=[f"once {row} upon" for row in range(ROWS)]), kind="text")
    assert contract["data"]["features"] == contract["data"]["text"] == ["story"]
    assert contract["data"]["label"] == "story"


def test_a_class_beside_one_column_of_texts_is_text_classification(init):
    texts = [f"my parcel {row} has not arrived yet" for row in range(ROWS)]
    frame = table(message=texts).select("when", "message", "country")
    contract, printed = init(frame, "--label", "country")
    assert contract["model"]["task"].endswith("text_classification:TextClassification")
    assert contract["model"]["options"] == {"context_length": 128}
    assert contract["data"]["features"] == contract["data"]["text"] == ["message"]
    assert "meta" not in contract["data"]
    assert "text: 'message', 33 bytes on average" in printed
    assert "too many for a category" not in printed


def test_few_sentences_are_a_bag_of_byte_pairs(init):
    texts = [f"my parcel {row} has not arrived yet, where is it now" for row in range(ROWS)]
    frame = pl.DataFrame({"kind": ["late", "lost"] * (ROWS // 2), "mail": texts})
    contract, printed = init(frame, "--label", "kind", kind="text")
    options = {"layers": 0, "vocab_size": 4000, "context_length": 64}
    assert contract["model"]["options"] == options
    assert "few texts: their words are read, not their order (layers = 0)" in printed


def test_without_the_package_of_byte_pairs_a_note_names_it(init, monkeypatch):
    monkeypatch.setattr(first_contract, "find_spec", lambda name: None)
    texts = [f"my parcel {row} has not arrived yet, where is it now" for row in range(ROWS)]
    frame = pl.DataFrame({"kind": ["late", "lost"] * (ROWS // 2), "mail": texts})
    contract, printed = init(frame, "--label", "kind", kind="text")
    assert contract["model"]["options"] == {"context_length": 128}
    assert "pip install 'perennial[text]'" in printed


def test_texts_beside_other_features_stay_out_of_a_table(init):
    texts = [f"my parcel {row} has not arrived yet" for row in range(ROWS)]
    contract, _ = init(table(message=texts), "--label", "country")
    assert contract["model"]["task"].endswith("TabularClassification")
    assert contract["data"]["meta"] == ["message"]


def test_the_schema_accepts_the_examples_and_finds_mistakes():
    schema = json.loads(schema_text())
    for path in sorted((ROOT / "examples").glob("*/contract.toml")):
        jsonschema.validate(tomllib.loads(path.read_text()), schema)
    wrong = {"model": {"name": "a", "task": "b:C"}, "data": {"uri": "d", "label": "l"}}
    with pytest.raises(jsonschema.ValidationError, match="stepz"):
        jsonschema.validate(wrong | {"training": {"stepz": 3}}, schema)
    described = schema["$defs"]["TrainingSection"]["properties"]["steps"]
    assert described["description"].startswith("Number of optimizer steps")
