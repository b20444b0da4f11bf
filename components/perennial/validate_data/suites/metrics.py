"""Metrics that facts answer: the table by which an expectation is judged without its rows.

Great Expectations computes a verdict in two steps: an engine computes metrics, such as
`column_values.between.unexpected_count`, and the expectation judges them. Here polars computes the
metrics, with the meaning that they have on pandas; what judges them is Great Expectations itself.
An expectation all of whose metrics are in `METRICS` is judged from facts.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import polars as pl

from perennial.validate_data.columns import is_missing
from perennial.validate_data.suites.counts import Moments, SuiteMeasures, counted_values

# A float32 is compared as such on pandas, with bounds rounded to it.
_NUMBERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.Float64)
_COMPOUND = "\x1f"


class NotFromFactsError(Exception):
    """A metric that facts do not answer, for this type of column or these arguments."""


@dataclass(frozen=True)
class Request:
    """One metric that Great Expectations asks for, with the arguments that are set."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Return its name in the facts; equal requests have equal names."""
        return f"{self.name}:{json.dumps(self.arguments, sort_keys=True, default=str)}"

    @property
    def column(self) -> str:
        """Return the column that it is about."""
        return str(self.arguments["column"])


class Need(NamedTuple):
    """A measure of the rows that a metric is computed from, and how its values are added up."""

    key: str
    measure: pl.Expr
    kind: str = "number"


@dataclass(frozen=True)
class Found:
    """Results of the pass over the rows.

    Attributes:
        tables: Measures of all rows, as `SuiteMeasures` describes them.
        types: Pandas' type of each column, in their order.
    """

    tables: Mapping[str, pl.DataFrame]
    schema: pl.Schema
    types: Mapping[str, Any]

    def sampled_values(self, requests: Mapping[str, Request]) -> tuple[dict[str, object], int]:
        """Return the metrics of a uniqueness on a sample of values, and one in how many it has.

        A value that is kept has all its rows, so the sample repeats values as all rows do.
        """
        unique = next(each for each in requests.values() if each.name in UNIQUENESS)
        table, level = self._values(_key_of_hashes(unique))
        rows = int(table["count"].sum())
        metrics: dict[str, object] = dict.fromkeys(requests, 0)
        for name, each in requests.items():
            if each.name == "table.row_count" or each.name.endswith("filtered_row_count"):
                metrics[name] = rows
            elif each is unique:
                metrics[name] = _repeated(each, table)
        return metrics, 1 << level

    def number(self, key: str) -> Any:  # noqa: ANN401 - of the column's type
        """Return a smallest or largest value; None without any."""
        return self.tables["numbers"][key].item()

    def count(self, key: str) -> np.int64:
        """Return a number that counts rows, of numpy's type as on pandas: x / 0 is not an error."""
        return np.int64(self.number(key))

    def value_table(self, key: str) -> pl.DataFrame:
        """Return value and count of each value.

        Raises:
            NotFromFactsError: there are too many different ones.
        """
        table, level = self._values(key)
        if level:
            raise NotFromFactsError(f"too many different values of {key.strip(_COMPOUND)}")
        return table

    def _values(self, key: str) -> tuple[pl.DataFrame, int]:
        dtype = self.schema.get(key, pl.String())  # hashes have no value
        return counted_values(self.tables["values"], key, dtype)


Condition: TypeAlias = Callable[[Request, pl.Schema], pl.Expr]
"""Whether each row meets what a request asks of it."""


class Metric(NamedTuple):
    """The measures that a metric needs, and its value, computed from the results."""

    needs: Callable[[Request, pl.Schema], Sequence[Need]]
    value: Callable[[Request, Found], object]


def measures_of(requests: Sequence[Request], schema: pl.Schema) -> SuiteMeasures:
    """Return what the rows must be measured for."""
    needs = [need for each in requests for need in METRICS[each.name].needs(each, schema)]
    by_kind: dict[str, dict[str, pl.Expr]] = {
        kind: {} for kind in ("number", "moments", "values", "hashes")
    }
    for need in needs:
        by_kind[need.kind][need.key] = need.measure
    numbers = {"rows": pl.len().cast(pl.Int64), **by_kind["number"]}
    return SuiteMeasures(numbers, by_kind["moments"], by_kind["values"], by_kind["hashes"])


def require_facts(requests: Sequence[Request], schema: pl.Schema) -> None:
    """Check that facts answer all requests.

    Raises:
        NotFromFactsError: they do not, with the reason.
    """
    for each in requests:
        if each.name not in METRICS:
            raise NotFromFactsError(f"no fact answers {each.name}")
        if each.arguments.get("row_condition") is not None:
            raise NotFromFactsError("it has a row_condition")
        names = [each.arguments[key] for key in _COLUMN_KEYS if key in each.arguments]
        for name in (*names, *each.arguments.get("column_list", ())):
            if name not in schema:
                raise NotFromFactsError(f"there is no column {name!r}")
        METRICS[each.name].needs(each, schema)


_COLUMN_KEYS = ("column", "column_A", "column_B")


def _present(name: str, schema: pl.Schema) -> pl.Expr:
    return ~is_missing(name, schema[name])


def _is_present(request: Request, schema: pl.Schema) -> pl.Expr:
    return _present(request.column, schema)


def _values(name: str, schema: pl.Schema) -> pl.Expr:
    return pl.when(_present(name, schema)).then(pl.col(name))


# Conditions on the values of one column ------------------------------------------------------


def _between(request: Request, schema: pl.Schema) -> pl.Expr:
    arguments = request.arguments
    low, high = arguments.get("min_value"), arguments.get("max_value")
    bounds: list[Any] = [each for each in (low, high) if each is not None]
    dtype = schema[request.column]
    is_number = dtype in _NUMBERS and all(_is_number(each) for each in bounds)
    is_time = _is_clock(dtype) and all(isinstance(each, datetime) for each in bounds)
    if not bounds or not (is_number or is_time) or bounds[0] > bounds[-1]:
        raise NotFromFactsError(f"bounds {bounds} on a column of {dtype}")
    return _within(pl.col(request.column), arguments)


def _within(column: pl.Expr, arguments: Mapping[str, Any]) -> pl.Expr:
    low, high = arguments.get("min_value"), arguments.get("max_value")
    inside = pl.lit(value=True)
    if low is not None:
        inside &= column > low if arguments.get("strict_min") else column >= low
    if high is not None:
        inside &= column < high if arguments.get("strict_max") else column <= high
    return inside


def _in_set(request: Request, schema: pl.Schema) -> pl.Expr:
    dtype, allowed = schema[request.column], request.arguments.get("value_set")
    if not isinstance(allowed, list):
        raise NotFromFactsError("no list of values")
    column = pl.col(request.column)
    if dtype == pl.String and all(isinstance(each, str) for each in allowed):
        return column.is_in(allowed)
    if dtype in _NUMBERS and all(_is_number(each) for each in allowed):
        is_whole = all(isinstance(each, int) for each in allowed) and dtype.is_integer()
        kind = pl.Int64 if is_whole else pl.Float64
        return column.cast(kind).is_in(pl.Series(allowed, dtype=kind, strict=False).implode())
    if dtype == pl.Boolean and all(isinstance(each, bool) for each in allowed):
        return column.is_in(allowed)
    raise NotFromFactsError(f"values {allowed[:3]} for a column of {dtype}")


def _matches(request: Request, schema: pl.Schema) -> pl.Expr:
    return _matches_pattern(request, schema, request.arguments.get("regex"))


def _matches_any(request: Request, schema: pl.Schema) -> pl.Expr:
    patterns = request.arguments.get("regex_list")
    if request.arguments.get("match_on", "any") != "any" or not patterns:
        raise NotFromFactsError("regex_list is empty or is matched on all")
    return reduce(or_, (_matches_pattern(request, schema, each) for each in patterns))


def _matches_pattern(request: Request, schema: pl.Schema, pattern: object) -> pl.Expr:
    if schema[request.column] != pl.String or not isinstance(pattern, str):
        raise NotFromFactsError(f"a pattern on a column of {schema[request.column]}")

    def matches(texts: pl.Series) -> pl.Series:
        # By pandas itself: the dialects of polars' regular expressions and of its own differ.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of groups that are not extracted
            found = pd.Series(texts.to_list(), dtype="str").str.contains(pattern)
        return pl.Series(found.to_numpy(dtype=bool))

    # A pattern costs much more than a look-up, and columns of texts repeat their values.
    def matches_once(texts: pl.Series) -> pl.Series:
        different = texts.unique().drop_nulls()
        return texts.is_in(different.filter(matches(different)).implode())

    return pl.col(request.column).map_batches(matches_once, return_dtype=pl.Boolean)


def _length(request: Request, schema: pl.Schema) -> pl.Expr:
    if schema[request.column] != pl.String:
        raise NotFromFactsError(f"lengths of a column of {schema[request.column]}")
    length = pl.col(request.column).str.len_chars().cast(pl.Int64)
    if "value" in request.arguments:
        return length.eq(request.arguments["value"])
    if not {"min_value", "max_value"} & request.arguments.keys():
        raise NotFromFactsError("no bound on the length")
    return _within(length, request.arguments)


def _not(condition: Condition) -> Condition:
    return lambda request, schema: ~condition(request, schema)


def _is_clock(dtype: pl.DataType) -> bool:
    """Whether a column holds times without a zone."""
    return isinstance(dtype, pl.Datetime) and dtype.time_zone is None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Conditions on several columns of a row ------------------------------------------------------


def _pair(request: Request, schema: pl.Schema) -> tuple[pl.Expr, pl.Expr]:
    a, b = request.arguments["column_A"], request.arguments["column_B"]
    kinds = {schema[a], schema[b]}
    is_comparable = len(kinds) == 1 or all(kind in _NUMBERS for kind in kinds)
    if not is_comparable or not all(
        kind in _NUMBERS or kind == pl.String or isinstance(kind, pl.Datetime) for kind in kinds
    ):
        raise NotFromFactsError(f"columns of {schema[a]} and {schema[b]} are not compared")
    return _values(a, schema), _values(b, schema)


def _pair_greater(request: Request, schema: pl.Schema) -> pl.Expr:
    a, b = _pair(request, schema)
    return a >= b if request.arguments.get("or_equal") else a > b


def _pair_equal(request: Request, schema: pl.Schema) -> pl.Expr:
    a, b = _pair(request, schema)
    return a == b


def _kept_rows(request: Request, schema: pl.Schema) -> pl.Expr:
    """Rows that `ignore_row_if` keeps."""
    arguments = request.arguments
    names = arguments.get("column_list") or [arguments["column_A"], arguments["column_B"]]
    present = [_present(name, schema) for name in names]
    rule = arguments.get("ignore_row_if")
    if rule in ("both_values_are_missing", "all_values_are_missing"):
        return pl.any_horizontal(present)
    if rule in ("either_value_is_missing", "any_value_is_missing"):
        return pl.all_horizontal(present)
    return present[0] | pl.lit(value=True)


# Metrics -------------------------------------------------------------------------------------


def _of_table(value: Callable[[Request, Found], object]) -> Metric:
    """Compute from what is known of every table."""
    return Metric(lambda request, schema: (), value)


def _rows_where(condition: Condition) -> Metric:
    """Count the rows that meet a condition."""

    def needs(request: Request, schema: pl.Schema) -> list[Need]:
        return [Need(request.key, condition(request, schema).sum().cast(pl.Int64))]

    return Metric(needs, lambda request, found: found.count(request.key))


def _judged_rows_without(condition: Condition, judged: Condition) -> Metric:
    """Count the judged rows that do not meet a condition."""

    def is_unmet(request: Request, schema: pl.Schema) -> pl.Expr:
        # A comparison with a missing value counts as unmet, as on pandas.
        return judged(request, schema) & ~condition(request, schema).fill_null(value=False)

    return _rows_where(is_unmet)


def _extreme(kind: str) -> Metric:
    def needs(request: Request, schema: pl.Schema) -> list[Need]:
        dtype = schema[request.column]
        if not (dtype in _NUMBERS or dtype == pl.String or _is_clock(dtype)):
            raise NotFromFactsError(f"the {kind} of a column of {dtype}")
        values = _values(request.column, schema)
        return [Need(request.key, getattr(values, kind)())]

    def value(request: Request, found: Found) -> object:
        number = found.number(request.key)
        is_clock = _is_clock(found.schema[request.column])
        return pd.Timestamp(number) if is_clock and number else pd.NaT if is_clock else number

    return Metric(needs, value)


def _moment(attribute: str) -> Metric:
    def needs(request: Request, schema: pl.Schema) -> list[Need]:
        _require_numbers(request, schema, attribute)
        return [Need(request.column, _values(request.column, schema), "moments")]

    def value(request: Request, found: Found) -> float:
        return float(getattr(Moments.of(found.tables["moments"], request.column), attribute))

    return Metric(needs, value)


def _column_hashes(request: Request, schema: pl.Schema) -> list[Need]:
    dtype = schema[request.column]
    if dtype not in _NUMBERS and dtype != pl.String:
        raise NotFromFactsError(f"counted values of a column of {dtype}")
    hashed = pl.when(_is_present(request, schema)).then(pl.col(request.column).hash())
    return [Need(_key_of_hashes(request), hashed, "hashes")]


def _compound_hashes(request: Request, schema: pl.Schema) -> list[Need]:
    names = request.arguments["column_list"]
    # All missing values are one value; of a 64-bit hash, two rows in a million rarely share one.
    row = pl.struct(_values(name, schema) for name in names).hash()
    kept = pl.when(_kept_rows(request, schema)).then(row)
    return [Need(_key_of_hashes(request), kept, "hashes")]


def _key_of_hashes(request: Request) -> str:
    return _COMPOUND.join(["", *(request.arguments.get("column_list") or [request.column])])


def _from_hashes(
    compute: Callable[[Request, pl.DataFrame], object],
    needs: Callable[[Request, pl.Schema], list[Need]] = _column_hashes,
) -> Metric:
    """Compute from the count of each different value."""

    def value(request: Request, found: Found) -> object:
        return compute(request, found.value_table(_key_of_hashes(request)))

    return Metric(needs, value)


def _from_values(
    compute: Callable[[Request, pl.DataFrame], object], *, numbers: bool = False
) -> Metric:
    """Compute from the value and count of each different value."""

    def needs(request: Request, schema: pl.Schema) -> list[Need]:
        dtype = schema[request.column]
        if dtype not in _NUMBERS and (numbers or dtype != pl.String):
            raise NotFromFactsError(f"counted values of a column of {dtype}")
        return [Need(request.column, _values(request.column, schema), "values")]

    def value(request: Request, found: Found) -> object:
        return compute(request, found.value_table(request.column))

    return Metric(needs, value)


def _require_numbers(request: Request, schema: pl.Schema, what: str) -> None:
    if schema[request.column] not in _NUMBERS:
        raise NotFromFactsError(f"the {what} of a column of {schema[request.column]}")


def _repeated(_: Request, table: pl.DataFrame) -> int:
    return int(table.filter(pl.col("count") > 1)["count"].sum())


def _median(_: Request, table: pl.DataFrame) -> float:
    ordered = table.sort("value")
    total, ends = int(ordered["count"].sum()), ordered["count"].cum_sum()
    if not total:
        return float("nan")
    middle = [int((ends <= rank).sum()) for rank in ((total - 1) // 2, total // 2)]
    return float(sum(float(ordered["value"][index]) for index in middle) / 2)


def _modes(_: Request, table: pl.DataFrame) -> list[Any]:
    return table.filter(pl.col("count") == pl.col("count").max())["value"].sort().to_list()


def _value_counts(_: Request, table: pl.DataFrame) -> pd.Series:
    ordered = table.sort("value")
    index = pd.Index(ordered["value"].to_list(), name="value")
    return pd.Series(ordered["count"].to_numpy(), index=index, name="count")


def _unlisted(request: Request, table: pl.DataFrame) -> list[Any]:
    return sorted(set(table["value"].to_list()) - set(request.arguments["value_set"]))


def _unseen(request: Request, table: pl.DataFrame) -> list[Any]:
    return list(set(request.arguments["value_set"]) - set(table["value"].to_list()))


def _present_share(request: Request, found: Found) -> float:
    rows = found.count("rows")
    return found.count(request.key) / rows if rows else 0


def _histogram_needs(request: Request, schema: pl.Schema) -> list[Need]:
    _require_numbers(request, schema, "histogram")
    values, bins = _values(request.column, schema), list(request.arguments["bins"])
    last = len(bins) - 2
    # As numpy's histogram: only the last bin contains its upper end.
    inside = [
        values.is_between(low, high, closed="both" if index == last else "left")
        for index, (low, high) in enumerate(pairwise(bins))
    ]
    return [
        Need(f"{request.key}:{index}", each.sum().cast(pl.Int64))
        for index, each in enumerate(inside)
    ]


_CONDITIONS: Mapping[str, Condition] = {
    "column_values.between": _between,
    "column_values.in_set": _in_set,
    "column_values.not_in_set": _not(_in_set),
    "column_values.match_regex": _matches,
    "column_values.not_match_regex": _not(_matches),
    "column_values.match_regex_list": _matches_any,
    "column_values.not_match_regex_list": _not(_matches_any),
    "column_values.value_length.equals": _length,
    "column_values.value_length.between": _length,
}
_PAIRS = {
    "column_pair_values.equal": _pair_equal,
    "column_pair_values.a_greater_than_b": _pair_greater,
}
UNIQUENESS = ("column_values.unique.unexpected_count", "compound_columns.unique.unexpected_count")

METRICS: dict[str, Metric] = {
    "table.row_count": _of_table(lambda _, found: found.count("rows")),
    "table.columns": _of_table(lambda _, found: list(found.schema)),
    "table.column_count": _of_table(lambda _, found: len(found.schema)),
    "table.column_types": _of_table(
        lambda _, found: [{"name": name, "type": kind} for name, kind in found.types.items()]
    ),
    "column_values.nonnull.unexpected_count": _rows_where(_not(_is_present)),
    "column_values.null.unexpected_count": _rows_where(_is_present),
    "column_values.nonnull.count": _rows_where(_is_present),
    **{
        f"{name}.unexpected_count": _judged_rows_without(condition, _is_present)
        for name, condition in _CONDITIONS.items()
    },
    **{
        f"{name}.unexpected_count": _judged_rows_without(condition, _kept_rows)
        for name, condition in _PAIRS.items()
    },
    **{f"{name}.filtered_row_count": _rows_where(_kept_rows) for name in _PAIRS},
    "column_values.between.count": _rows_where(
        lambda request, schema: _is_present(request, schema) & _between(request, schema)
    ),
    "column.non_null_proportion": Metric(_rows_where(_is_present).needs, _present_share),
    "column.min": _extreme("min"),
    "column.max": _extreme("max"),
    "column.sum": _moment("sum"),
    "column.mean": _moment("mean"),
    "column.standard_deviation": _moment("standard_deviation"),
    "column.median": _from_values(_median, numbers=True),
    "column.most_common_value": _from_values(_modes),
    "column.value_counts": _from_values(_value_counts),
    "column.distinct_values.count": _from_hashes(lambda _, table: table.height),
    "column.unique_proportion": _from_hashes(
        lambda _, table: table.height / int(table["count"].sum()) if table.height else 0
    ),
    "column.distinct_values.not_in_set": _from_values(_unlisted),
    "column.distinct_values.not_in_set.count": _from_values(
        lambda request, table: len(_unlisted(request, table))
    ),
    "column.distinct_values.missing_from_column": _from_values(_unseen),
    "column.distinct_values.missing_from_column.count": _from_values(
        lambda r, t: len(_unseen(r, t))
    ),
    "column_values.unique.unexpected_count": _from_hashes(_repeated),
    "column.histogram": Metric(
        _histogram_needs,
        lambda request, found: [
            found.count(f"{request.key}:{index}")
            for index in range(len(request.arguments["bins"]) - 1)
        ],
    ),
    "compound_columns.unique.filtered_row_count": _rows_where(_kept_rows),
    "compound_columns.unique.unexpected_count": _from_hashes(_repeated, _compound_hashes),
}
