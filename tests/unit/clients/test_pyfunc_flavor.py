"""What MLflow reads beside a model's files: types that fit raw rows, an example, an environment."""

import json
from datetime import datetime

import polars as pl
import pytest
import yaml
from mlflow.models import Model
from mlflow.types import DataType

from perennial.clients.pyfunc_flavor import column, write_flavor


@pytest.mark.parametrize(
    ("dtype", "nullable", "kind"),
    [
        (pl.Float64(), False, "double"),
        (pl.Float64(), True, "double"),
        (pl.Float32(), False, "float"),
        (pl.Int64(), False, "long"),
        (pl.Int64(), True, "Any"),
        (pl.Int16(), False, "integer"),
        (pl.UInt64(), False, "Any"),
        (pl.String(), False, "string"),
        (pl.Boolean(), False, "boolean"),
        (pl.Binary(), False, "binary"),
        (pl.Categorical(), False, "Any"),
        (pl.Datetime("us"), False, "datetime"),
        (pl.Datetime("us", "UTC"), False, "Any"),
        (pl.Date(), False, "Any"),
        (pl.List(pl.Float64), False, "Array(double)"),
        (pl.Array(pl.Int64, 3), False, "Array(long)"),
        (pl.List(pl.Date), False, "Any"),
    ],
)
def test_types_are_those_that_mlflow_lets_raw_rows_through_with(dtype, nullable, kind):
    assert str(column("x", dtype, nullable).type).removeprefix("DataType.") == kind


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
