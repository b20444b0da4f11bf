"""Counts per column: missing, infinite, outside of the declared limits, known too late."""

import math
from collections.abc import Iterator, Mapping

import polars as pl
import polars.selectors as cs

from perennial.contracts.snapshot import Snapshot
from perennial.data.opaque_columns import OpaqueKind, is_blank, is_unreadable
from perennial.validate_data.config import ColumnExpectation

# By the beginning of a measure's name: of facts, and of suites, as Great Expectations calls them.
_COMBINE = {
    **{"low": pl.Expr.min, "high": pl.Expr.max},
    **{"column.min": pl.Expr.min, "column.max": pl.Expr.max},
}


def measure_columns(batch: pl.DataFrame, measures: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Return one row with every measure of a batch."""
    # Most columns have no infinite values and no NaN; their extremes need no test of each value.
    tests = batch.select(cs.float().is_finite().all())
    finite_only = [column.name for column in tests if column.item()]
    plain = {f"low:{name}": pl.col(name).min() for name in finite_only}
    plain |= {f"high:{name}": pl.col(name).max() for name in finite_only}
    return batch.select(plain.get(name, test).alias(name) for name, test in measures.items())


def merge_columns(table: pl.DataFrame) -> pl.DataFrame:
    """Return one row for several: of smallest and largest values, and sums of all else."""
    return table.select(
        _COMBINE.get(name.partition(":")[0], pl.Expr.sum)(pl.col(name)) for name in table.columns
    )


def column_values(table: pl.DataFrame) -> dict[str, object]:
    """Return each measure; the smallest and largest value is None without any."""
    return {column.name: _value(column) for column in table}


def column_measures(
    snapshot: Snapshot,
    schema: pl.Schema,
    expectations: Mapping[str, ColumnExpectation],
    *,
    opaque: Mapping[str, OpaqueKind],
) -> dict[str, pl.Expr]:
    """Return all measures by fact name, such as `missing:temp`."""
    measures: dict[str, pl.Expr] = {"rows": pl.len()}
    for name, dtype in schema.items():
        if name not in opaque:
            measures |= dict(_value_measures(name, dtype))
    for name, kind in opaque.items():
        measures[f"missing:{name}"] = pl.col(name).is_null().sum()
        measures[f"unreadable:{name}"] = is_unreadable(name, kind).sum()
        measures[f"blank:{name}"] = is_blank(name, kind).sum()
    for name, expectation in expectations.items():
        if name in schema:
            bad = _bad_values(name, schema[name], expectation)
            measures |= {f"{kind}:{name}": is_bad.sum() for kind, is_bad in bad}
    data = snapshot.data
    for feature, available in data.available_at.items():
        late = pl.col(available) > pl.col(data.time or "")
        undated = pl.col(available).is_null() & ~is_missing(feature, schema[feature])
        measures[f"late_rows:{feature}"] = late.sum()
        measures[f"undated_rows:{feature}"] = undated.sum()
    counts = {name: each for name, each in measures.items() if name[:4] not in ("low:", "high")}
    return measures | {name: each.cast(pl.Int64) for name, each in counts.items()}


def is_missing(name: str, dtype: pl.DataType) -> pl.Expr:
    """Whether a value is missing: null, or NaN, which many writers of Parquet use for it."""
    null = pl.col(name).is_null()
    return null | pl.col(name).is_nan().fill_null(False) if dtype.is_float() else null


def finite(name: str, dtype: pl.DataType) -> pl.Expr:
    """The values of a numeric column, null where they are missing or infinite."""
    column = pl.col(name)
    return pl.when(column.is_finite()).then(column) if dtype.is_float() else column


def is_text(dtype: pl.DataType) -> bool:
    """Whether a column holds categories rather than amounts."""
    return dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Enum)


def _bad_values(
    name: str, dtype: pl.DataType, expectation: ColumnExpectation
) -> Iterator[tuple[str, pl.Expr]]:
    """Yield the values that break an expectation, by kind; none where the type rules it out."""
    column = pl.col(name)
    if dtype.is_numeric() and (expectation.min is not None or expectation.max is not None):
        low = -math.inf if expectation.min is None else expectation.min
        high = math.inf if expectation.max is None else expectation.max
        yield "outside", ~finite(name, dtype).is_between(low, high)
    if expectation.allowed:
        words = [value for value in expectation.allowed if isinstance(value, str | bool)]
        numbers = [float(value) for value in expectation.allowed if value not in words]
        if is_text(dtype) and not numbers:
            known = [str(value).lower() if isinstance(value, bool) else value for value in words]
            yield "unlisted", ~column.cast(pl.String).is_in(known)
        elif dtype.is_numeric() and not words:
            yield "unlisted", ~finite(name, dtype).cast(pl.Float64).is_in(numbers)
    if expectation.matches and is_text(dtype):
        # Grouped, so that the anchors hold for each alternative of `a|b`.
        pattern = f"^(?:{expectation.matches})$"
        yield "unmatched", ~column.cast(pl.String).str.contains(pattern)


def _value(column: pl.Series) -> object:
    """The one value of a column; a moment beyond the calendar as its number."""
    try:
        return column.item()
    except (ValueError, OverflowError):
        return f"{column.to_physical().item()} ({column.dtype})"


def _value_measures(name: str, dtype: pl.DataType) -> Iterator[tuple[str, pl.Expr]]:
    yield f"missing:{name}", is_missing(name, dtype).sum()
    if dtype.is_float():
        yield f"infinite:{name}", pl.col(name).is_infinite().sum()
    if dtype.is_numeric() or dtype.is_temporal() or is_text(dtype):
        values = finite(name, dtype) if dtype.is_numeric() else pl.col(name)
        yield f"low:{name}", values.min()
        yield f"high:{name}", values.max()
