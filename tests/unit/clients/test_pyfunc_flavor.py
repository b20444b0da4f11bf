"""What MLflow reads beside a model's files: types that fit raw rows, an example, an environment."""

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pandas as pd
import polars as pl
import pytest
import yaml
from mlflow.models import Model
from mlflow.models.utils import _enforce_schema as enforce_schema
from mlflow.types import DataType, Schema
from mlflow.utils.proto_json_utils import dataframe_from_parsed_json

from perennial.clients.pyfunc_flavor import column, write_flavor
from perennial.engine.serving.pyfunc import typed_rows


@pytest.mark.parametrize(
    ("dtype", "nullable", "kind"),
    [
        (pl.Float64(), False, "double"),
        (pl.Float64(), True, "double"),
        (pl.Float32(), False, "double"),
        (pl.Int64(), False, "long"),
        (pl.Int64(), True, "Any"),
        (pl.Int16(), False, "long"),
        (pl.UInt64(), False, "Any"),
        (pl.String(), False, "string"),
        (pl.Boolean(), False, "boolean"),
        (pl.Binary(), False, "binary"),
        (pl.Categorical(), False, "Any"),
        (pl.Datetime("us"), False, "datetime"),
        (pl.Datetime("us", "UTC"), False, "Any"),
        (pl.Date(), False, "Any"),
        (pl.List(pl.Float64), False, "Any"),
        (pl.Array(pl.Int64, 3), False, "Any"),
        (pl.List(pl.String), False, "Array(string)"),
        (pl.List(pl.Date), False, "Any"),
    ],
)
def test_types_are_those_that_mlflow_lets_raw_rows_through_with(dtype, nullable, kind):
    assert str(column("x", dtype, nullable).type).removeprefix("DataType.") == kind


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (pl.Int8, 2), (pl.UInt8, 2), (pl.Int32, 2), (pl.UInt32, 2), (pl.Int64, 2),
        (pl.Float32, 1.5), (pl.Float64, 1.5),
    ],
)  # fmt: skip
def test_numbers_reach_the_model_in_the_types_that_pandas_makes(dtype, value):
    schema = Schema([column("x", dtype(), nullable=False)])
    sent = enforce_schema(pd.DataFrame({"x": [value, value]}), schema)
    assert typed_rows(sent, pl.Schema({"x": dtype()}))["x"].to_list() == [value, value]


@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64, pl.Int32, pl.UInt8, pl.Int64])
@pytest.mark.parametrize("sent", [[1, 2], [1.5, 2.0]])
def test_mlflows_server_lets_lists_of_numbers_through(dtype, sent):
    """It refused the example that is stored beside a model of windows or embeddings."""
    body = {"columns": ["x"], "data": [[sent]]}
    schema = Schema([column("x", pl.List(dtype), nullable=False)])
    assert dataframe_from_parsed_json(body, "split", schema)["x"].to_list() == [sent]


@pytest.fixture
def flavor(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text("x = 1")
    rows = pl.DataFrame(
        {"when": [datetime(2025, 1, 2)], "picture": [b"\x00"], "size": [1.5], "count": [None]},
        schema_overrides={"count": pl.Int64},
    )
    write_flavor(
        tmp_path / "model", loader="mine", sources={"pack/mine.py": source},
        requirements=["torch==2.0"], example=rows, nullable=["count"],
        outputs={"late": float, "tags": str},
    )  # fmt: skip
    return tmp_path / "model"


def test_mlflow_reads_signature_example_and_loader(flavor):
    model = Model.load(str(flavor))
    assert model.signature.inputs.input_names() == ["when", "picture", "size", "count"]
    assert [(each.name, each.type) for each in model.signature.outputs] == [
        ("late", DataType.double), ("tags", DataType.string),
    ]  # fmt: skip
    assert model.flavors["python_function"]["loader_module"] == "mine"
    sent = json.loads(model.get_serving_input(str(flavor)))["dataframe_split"]
    assert sent["data"] == [["2025-01-02T00:00:00", "AA==", 1.5, None]]
    example = model.load_input_example(str(flavor))
    assert list(example.columns) == ["when", "picture", "size", "count"]


@pytest.mark.parametrize(
    ("value", "dtype", "sent"),
    [
        (Decimal("1.50"), pl.Decimal(10, 2), 1.5),
        ([date(2025, 1, 2)], pl.List(pl.Date), ["2025-01-02"]),
        ([b"\x00"], pl.List(pl.Binary), ["AA=="]),
        ({"at": time(3)}, pl.Struct({"at": pl.Time}), {"at": "03:00:00"}),
        ([1.5, None], pl.List(pl.Float32), [1.5, None]),
        (timedelta(seconds=90), pl.Duration("us"), 90.0),
    ],
)
def test_values_without_a_form_in_json_are_in_the_example(tmp_path, value, dtype, sent):
    """A training on amounts of money ended after it with a TypeError."""
    rows = pl.DataFrame({"x": pl.Series([value], dtype=dtype)})
    write_flavor(
        tmp_path, loader="mine", sources={}, requirements=[], example=rows, nullable=[],
        outputs={"late": float},
    )  # fmt: skip
    request = json.loads((tmp_path / "serving_input_example.json").read_text())
    assert request["dataframe_split"]["data"] == [[sent]]


def test_environments_are_exact(flavor):
    assert (flavor / "requirements.txt").read_text() == "torch==2.0\n"
    assert yaml.safe_load((flavor / "python_env.yaml").read_text())["dependencies"] == [
        "-r requirements.txt"
    ]
    (*_, packages) = yaml.safe_load((flavor / "conda.yaml").read_text())["dependencies"]
    assert packages == {"pip": ["torch==2.0"]}


def test_code_travels_and_nothing_is_pickled(flavor):
    assert (flavor / "code" / "pack" / "mine.py").read_text() == "x = 1"
    kinds = {path.suffix for path in flavor.rglob("*") if path.is_file()}
    assert kinds == {".py", ".txt", ".yaml", ".json", ".parquet", ""}
