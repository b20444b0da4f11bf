"""Pyfunc: a registered version as MLflow loads it, by the `loader_module` of its flavour.

It is imported from the copy that every version carries, so it and all that it imports must be
light: what is imported here becomes a requirement of every served model.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from torch import nn

from perennial.clients.pyfunc_flavor import CODE_FOLDER, EXAMPLE_ROWS_FILE, refusal
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.contracts.user_code import user_code
from perennial.engine.evaluation.scoring import device_of, predict_batch, scoring_device
from perennial.engine.export import load_model
from perennial.engine.serving.carried_code import use_carried_code
from perennial.engine.task import Task, to_device

NANOSECONDS = 1e9
UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Zulu", "+00:00")
OFFSET = r"(?:[Zz]|[+-]\d\d:?\d\d)$"
OTHER_OFFSET = r":\d\d.*(?:[+-](?:\d[1-9]|[1-9]\d):?\d\d|[+-]00:?(?:\d[1-9]|[1-9]\d))$"
EXACT = 2.0**53
ZONED_EXAMPLE = "as 2025-07-02T03:00:00+02:00"


class ServedModel:
    """A model for raw rows: encoded by its own task, predicted as in the gate's evaluation.

    Args:
        schema: Columns that the rows must have, as the snapshot had them. Others are ignored.
    """

    def __init__(self, task: Task, model: nn.Module, schema: pl.Schema) -> None:
        self._task = task
        self._model = model
        self._schema = schema

    def predict(
        self, model_input: pd.DataFrame, params: dict[str, object] | None = None
    ) -> pd.DataFrame:
        """Return one line of named predictions per row, in order, with the index of the input.

        Raises:
            MlflowException: rows that the model cannot take; a server answers with status 400.
        """
        try:
            with user_code("the served model"):
                rows = typed_rows(model_input, self._schema)
                values = predict_rows(self._task, self._model, rows)
                _require_finite(values, rows)
                # Callers assign predictions to columns, which pandas aligns by the index.
                return answer(self._task, values, rows).set_axis(model_input.index)
        except PerennialError as error:
            raise refusal(error) from error


def _load_pyfunc(path: str) -> ServedModel:
    """Load the model; called by MLflow with the folder of the version's files."""
    folder = Path(path)
    use_carried_code(folder / CODE_FOLDER)
    with user_code("loading the model"):
        task, model = load_model(folder, scoring_device())
    with (folder / EXAMPLE_ROWS_FILE).open("rb") as rows:  # a path would be taken for a pattern
        return ServedModel(task, model, pl.Schema(pl.read_parquet_schema(rows)))


def predict_rows(task: Task, model: nn.Module, rows: pl.DataFrame) -> NDArray[np.float64]:
    """Return the evaluation's predictions of rows, shape [N, K], in batches."""
    device = device_of(model)
    parts = []
    for start in range(0, rows.height, task.scoring_rows):
        batch = task.encode(rows.slice(start, task.scoring_rows))
        _, served = predict_batch(task, model, to_device(batch, device), is_served=True)
        found = served.detach().double().cpu().numpy()
        parts.append(found[:, None] if found.ndim == 1 else found)
    return np.concatenate(parts)


def _require_finite(values: NDArray[np.float64], rows: pl.DataFrame) -> None:
    """Refuse rows whose predictions are NaN or infinite, as the evaluation does.

    Raises:
        BadDataError: there are such rows; the numbers of the first are named.
    """
    is_broken = ~np.isfinite(values).all(axis=1)
    if not is_broken.any():
        return
    first = int(is_broken.argmax())
    numbers = {
        name: value for name, value in rows.row(first, named=True).items() if _is_number(value)
    }
    far = sorted(numbers, key=lambda name: -abs(numbers[name]))[:3]
    raise BadDataError(
        f"{is_broken.sum():,} of {rows.height:,} rows have no finite prediction",
        evidence=f"row {first} has {', '.join(f'{name} = {numbers[name]:g}' for name in far)}"
        if far
        else f"the first is row {first}",
        action="send numbers of the size that the model was trained on; a missing value is null",
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)


def answer(task: Task, values: NDArray[np.float64], rows: pl.DataFrame) -> pd.DataFrame:
    """Return the answer to rows: the task's texts if it has any, else its named predictions."""
    texts = task.answer_texts(values, rows)
    if texts:
        return pd.DataFrame(dict(texts), dtype=object)
    return pd.DataFrame(values, columns=prediction_names(task, values.shape[1]))


def prediction_names(task: Task, width: int) -> list[str]:
    """Return the task's names of its predictions, else `prediction`, or numbered names.

    Raises:
        BadDataError: the task names more or fewer than it predicts.
    """
    named = list(task.prediction_names)
    if not named:
        return ["prediction"] if width == 1 else [f"prediction_{place}" for place in range(width)]
    if len(named) != width:
        raise BadDataError(
            f"{type(task).__name__}.prediction_names has {len(named)} names",
            evidence=f"the predictions have {width} columns",
            action="name each column, in order, or none of them",
        )
    return named


def typed_rows(frame: pd.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Return the columns that the model was trained on, in their training types.

    Raises:
        BadDataError: there is no row, a column is missing, or a value does not fit its type.
    """
    if frame.empty:
        raise BadDataError("there are no rows to predict", action="send at least one row")
    missing = [name for name in schema if name not in frame.columns]
    if missing:
        raise BadDataError(
            f"the rows lack the columns {missing}",
            evidence=f"they have: {', '.join(map(str, frame.columns))}",
            action="send every column of the model's signature; other columns are ignored",
        )
    return pl.DataFrame([_typed(frame[name], name, dtype) for name, dtype in schema.items()])


def _typed(values: "pd.Series[object]", name: str, dtype: pl.DataType) -> pl.Series:
    try:
        found = pl.Series(name, pa.array(values, from_pandas=True))
        if found.null_count() == len(found):
            return pl.Series(name, [None] * len(found), dtype=dtype)
        if _loses(found, dtype):
            raise _mistyped(name, dtype, found)
        if isinstance(dtype, pl.Datetime) and _needs_zone(found, dtype.time_zone):
            raise _mistyped(name, dtype, found, f"send times with their offset, {ZONED_EXAMPLE}")
        if dtype.is_temporal() and _has_other_zone(found, dtype):
            action = "send them as the training data has them, without an offset"
            raise _mistyped(name, dtype, found, action)
        if found.dtype == pl.String:
            return _from_text(found, dtype)
        if dtype == pl.Duration and found.dtype.is_numeric():  # seconds, as requests have them
            return (found * NANOSECONDS).cast(pl.Int64).cast(pl.Duration("ns")).cast(dtype)
        return found.cast(dtype)
    except (pl.exceptions.PolarsError, pa.ArrowException) as error:
        raise _mistyped(name, dtype, pl.Series([str(each) for each in values.dropna()])) from error


def _from_text(found: pl.Series, dtype: pl.DataType) -> pl.Series:
    """Parse dates and times, which requests contain as ISO text."""
    if dtype == pl.Date:
        return found.str.to_date()
    if dtype == pl.Time:
        return found.str.to_time("%H:%M:%S%.f")
    if isinstance(dtype, pl.Datetime):
        zone = "UTC" if dtype.time_zone else None
        return found.str.to_datetime(time_zone=zone).cast(dtype)
    return found.cast(dtype)


def _loses(found: pl.Series, dtype: pl.DataType) -> bool:
    """Whether polars would silently parse or write numbers, truncate them, or take them for times.

    These would be days, or some part of a second, since 1970; a request has epochs of any unit.
    """
    if found.null_count() == len(found):
        return False
    if isinstance(dtype, pl.List | pl.Array) and isinstance(found.dtype, pl.List | pl.Array):
        return _loses(found.explode(), pl.Series([], dtype=dtype.inner).dtype)
    if isinstance(dtype, pl.Struct) and isinstance(found.dtype, pl.Struct):
        sent = found.drop_nulls().struct.unnest()
        kinds = pl.Series([], dtype=dtype).struct.schema
        return any(_loses(sent[name], kind) for name, kind in kinds.items() if name in sent)
    # pandas keeps whole numbers as fractions where one is missing: 5 would be the text "5.0".
    rewritten = found.dtype.is_float() or found.dtype.is_decimal() or found.dtype.is_temporal()
    if dtype == pl.String and (rewritten or found.dtype == pl.Boolean):
        return True
    is_parsed = dtype.is_numeric() and not found.dtype.is_numeric()
    is_epoch = dtype.is_temporal() and dtype != pl.Duration and found.dtype.is_numeric()
    if is_parsed or is_epoch:
        return True
    return found.dtype.is_numeric() and _changes_numbers(found.drop_nulls(), dtype)


def _changes_numbers(found: pl.Series, dtype: pl.DataType) -> bool:
    """Whether polars would silently make other numbers of some, or truth values of codes."""
    if dtype == pl.Boolean:
        return not found.is_in([0, 1]).all()
    if dtype.is_integer() and found.dtype.is_float():
        # From there on, fractions of double precision do not hold every whole number.
        return bool((found % 1 != 0).any() or (found.abs() >= EXACT).any())
    if not dtype.is_float():
        return False
    numbers = found.cast(pl.Float64)
    return bool((numbers.is_finite() & numbers.cast(dtype).is_infinite()).any())


def _needs_zone(found: pl.Series, zone: str | None) -> bool:
    """Whether times lack the zone that decides which moments they are.

    polars would take the clock of a column in another zone for that of UTC.
    """
    if zone is None or zone in UTC_NAMES:
        return False
    if found.dtype == pl.String:
        return not found.str.contains(OFFSET).all()
    return getattr(found.dtype, "time_zone", None) is None


def _has_other_zone(found: pl.Series, dtype: pl.DataType) -> bool:
    """Whether times name a zone, and the column has none: its clock may be that of any zone."""
    if getattr(dtype, "time_zone", None) is not None or dtype == pl.Duration:
        return False
    if found.dtype == pl.String:
        return bool(found.str.contains(OTHER_OFFSET).any())
    zone = getattr(found.dtype, "time_zone", None)
    return zone is not None and zone not in UTC_NAMES


def _mistyped(
    name: str,
    dtype: pl.DataType,
    found: pl.Series,
    action: str = "send it in the type of the training data; a missing value is null",
) -> BadDataError:
    shown = found.drop_nulls().head(3).to_list()
    return BadDataError(
        f"column {name!r} cannot be read as {dtype}",
        evidence=f"its first values are {str(shown)[:200]}",
        action=action,
    )
