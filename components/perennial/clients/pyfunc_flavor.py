"""Pyfunc flavour: MLflow's files beside a model's own, so that its tools serve raw rows."""

import base64
import json
import platform
from collections.abc import Collection, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from shutil import copyfile

import numpy as np
import polars as pl
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import AnyType, Array
from numpy.typing import NDArray

EXAMPLE_ROWS_FILE = "example_rows.parquet"
EXAMPLE_PREDICTIONS_FILE = "example_predictions.json"
MODEL_FILE = "MLmodel"
CODE_FOLDER = "code"
PROGRAM = Path(__file__).with_name("pyfunc_process.py")
"""Serves a folder once, as new; run by its path."""
_REQUIREMENTS, _CONDA, _VIRTUALENV = "requirements.txt", "conda.yaml", "python_env.yaml"
_EXAMPLE, _SERVING_EXAMPLE = "input_example.json", "serving_input_example.json"
# The widest of a kind: pandas makes int64 and float64 of numbers, which MLflow does not narrow.
# The served model does, where nothing is lost. None holds UInt64.
_TYPES = {
    pl.Float64: DataType.double,
    pl.Float32: DataType.double,
    pl.Boolean: DataType.boolean,
    pl.String: DataType.string,
    pl.Binary: DataType.binary,
    pl.Int64: DataType.long,
    pl.Int32: DataType.long,
    pl.Int16: DataType.long,
    pl.Int8: DataType.long,
    pl.UInt32: DataType.long,
    pl.UInt16: DataType.long,
    pl.UInt8: DataType.long,
}
_ANSWERS: Mapping[type[float | str], DataType] = {float: DataType.double, str: DataType.string}
_ANY = AnyType()  # type: ignore[no-untyped-call] # MLflow annotates all but this constructor


def write_flavor(
    folder: Path,
    *,
    loader: str,
    sources: Mapping[str, Path],
    requirements: Sequence[str],
    example: pl.DataFrame,
    nullable: Collection[str],
    outputs: Mapping[str, type[float | str]],
) -> None:
    """Add the `python_function` flavour to a model's folder.

    File tree: `MLmodel`, `requirements.txt`, `python_env.yaml`, `conda.yaml`, `code/`,
    `input_example.json`, `serving_input_example.json` (the body of a request) and, with the exact
    types, `example_rows.parquet`. MLflow's own `save_model` is not used: it would look for a lock
    file of whatever project the working folder belongs to.

    Args:
        folder: Holds the model's own files, which the loader reads.
        loader: Module with MLflow's `_load_pyfunc`; one of the sources.
        sources: Path below the folder of code → file.
        requirements: Exact versions of packages, as pip reads them.
        example: A few raw rows, whose columns are the model's inputs.
        nullable: Integer columns in which values may be missing.
        outputs: Names of the predictions, and whether they are numbers or texts.
    """
    for name, file in sources.items():
        target = folder / CODE_FOLDER / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copyfile(file, target)
    example.write_parquet(folder / EXAMPLE_ROWS_FILE)
    request = {"columns": example.columns, "data": example.rows()}
    served = {"dataframe_split": request}
    (folder / _EXAMPLE).write_text(json.dumps(request, default=_plain))
    (folder / _SERVING_EXAMPLE).write_text(json.dumps(served, default=_plain))
    _write_environment(folder, requirements)
    model = Model(
        signature=ModelSignature(
            inputs=Schema([column(n, d, n in nullable) for n, d in example.schema.items()]),
            outputs=Schema([ColSpec(_ANSWERS[kind], name) for name, kind in outputs.items()]),
        ),
        saved_input_example_info={
            "artifact_path": _EXAMPLE,
            "serving_input_path": _SERVING_EXAMPLE,
            "type": "dataframe",
            "pandas_orient": "split",
        },
    )
    model.add_flavor(
        "python_function",
        loader_module=loader,
        code=CODE_FOLDER,
        python_version=platform.python_version(),
        env={"conda": _CONDA, "virtualenv": _VIRTUALENV},
    )
    model.save(str(folder / MODEL_FILE))


def write_example_predictions(folder: Path, predictions: NDArray[np.float64]) -> None:
    """Store what a model predicted of its example rows, [N, K], beside them."""
    (folder / EXAMPLE_PREDICTIONS_FILE).write_text(json.dumps(predictions.tolist()))


def read_requirements(folder: Path) -> dict[str, str]:
    """Return package → the version that a model's folder requires; nothing of one without any."""
    file = folder / _REQUIREMENTS
    lines = file.read_text().splitlines() if file.is_file() else []
    pairs = (line.partition("==") for line in lines)
    return {name.strip(): version.strip() for name, mark, version in pairs if mark}


def read_example_predictions(folder: Path) -> NDArray[np.float64] | None:
    """Return what a model predicted of its example rows, [N, K]; None if that was not stored."""
    file = folder / EXAMPLE_PREDICTIONS_FILE
    return np.array(json.loads(file.read_text()), dtype=np.float64) if file.is_file() else None


def column(name: str, dtype: pl.DataType, nullable: bool) -> ColSpec:
    """Return MLflow's name of a column's type.

    `any` where its own types would refuse what training took: whole numbers that may be missing,
    which pandas keeps as fractions, lists of numbers, categories, times with a zone, and what has
    no name there.
    """
    return ColSpec(_ANY if nullable and dtype.is_integer() else _kind(dtype), name)


def refusal(error: Exception) -> MlflowException:
    """Return the error of a caller of a served model; the server answers with its message."""
    return MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE)


def _kind(dtype: pl.DataType) -> DataType | Array | AnyType:
    if isinstance(dtype, pl.List | pl.Array):
        values = dtype.inner if isinstance(dtype.inner, pl.DataType) else dtype.inner()
        inner = _kind(values)
        # In lists, MLflow converts nothing: of JSON it refuses [1, 2] as doubles, [1.5] as floats.
        return _ANY if values.is_numeric() or isinstance(inner, AnyType) else Array(inner)
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is None:
        return DataType.datetime
    return _TYPES.get(type(dtype), _ANY)


def _plain(value: object) -> object:
    """Return a value for which JSON has no form as a request has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) if isinstance(value, Decimal) else str(value)


def _write_environment(folder: Path, requirements: Sequence[str]) -> None:
    python = platform.python_version()
    virtualenv = {
        "python": python,
        "build_dependencies": ["pip", "setuptools", "wheel"],
        "dependencies": [f"-r {_REQUIREMENTS}"],
    }
    conda = {
        "name": "mlflow-env",
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": list(requirements)}],
    }
    (folder / _REQUIREMENTS).write_text("".join(f"{line}\n" for line in requirements))
    # JSON is YAML, too.
    (folder / _VIRTUALENV).write_text(json.dumps(virtualenv, indent=2))
    (folder / _CONDA).write_text(json.dumps(conda, indent=2))
