"""Draft of a suite: what a reference snapshot suggests, for people to edit and commit.

Limits come from how much the blocks of the reference differ among themselves, because the rows of
one day or file are not independent. What was learned is a warning; what must hold is critical.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import rel_entr

from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import Severity
from perennial.data.dataset import Dataset, block_key
from perennial.validate_data.columns import finite, is_missing, is_text
from perennial.validate_data.state import merge_in_steps
from perennial.validate_data.suites.counts import SuiteMeasures
from perennial.validate_data.suites.document import Suite, SuiteExpectation

SAMPLE_ROWS = 200_000
_BATCH_ROWS = 250_000
_MAX_SET, _MAX_NUMBERS = 200, 20
_MIN_BLOCKS, _MIN_BLOCK_ROWS = 4, 100
_DEVIATIONS = 3.0
# The range of a season is not the range of a year: by so much of its span it may be left.
_SPAN_MARGIN = 0.5
_ROWS_SHARE = 0.25
_BINS = 10
# Share of the mass that is kept for values which the reference lacks: without it, a single one of
# them would make the divergence infinite.
_HOLDOUT = 0.01
_MIN_DIVERGENCE = 0.05
_OPAQUE = (pl.Binary, pl.List, pl.Array, pl.Struct)


@dataclass(frozen=True)
class _Reference:
    """A sample of the reference's rows with `__block__`, and exact figures of all of them."""

    snapshot: Snapshot
    schema: pl.Schema
    rows: pl.DataFrame
    numbers: Mapping[str, Any]

    def blocks(self, name: str) -> list[pl.Series]:
        """The present values of a column, block by block; small blocks are left out."""
        present = self.rows.filter(~is_missing(name, self.schema[name]))
        parts = present.select("__block__", name).partition_by("__block__")
        return [part[name] for part in parts if part.height >= _MIN_BLOCK_ROWS]

    def missing_share(self, name: str) -> float:
        """Return the exact share of missing values."""
        return int(self.numbers[f"missing:{name}"]) / max(int(self.numbers["rows"]), 1)

    def largest_missing_share(self, name: str) -> float:
        """Return the largest share of missing values that a block may be expected to have."""
        missing = is_missing(name, self.schema[name]).mean().alias("share")
        enough = pl.len() >= _MIN_BLOCK_ROWS
        shares = self.rows.group_by("__block__").agg(missing, enough.alias("enough"))
        found = shares.filter("enough")["share"].to_numpy()
        spread = _DEVIATIONS * float(found.std()) if len(found) > 1 else 0.0
        return max(float(found.max(initial=0.0)), self.missing_share(name)) + spread


def draft_suite(dataset: Dataset) -> Suite:
    """Draft the suite of a dataset that people have found to be good.

    Raises:
        BadDataError: it has no rows.
    """
    reference = _measure(dataset)
    if reference.rows.is_empty():
        raise BadDataError("a suite cannot be drafted from no rows", action="wait for data")
    return Suite(name="drafted", expectations=tuple(_expectations(reference)))


def _measure(dataset: Dataset) -> _Reference:
    schema = dataset.schema()
    numbers: dict[str, pl.Expr] = {"rows": pl.len().cast(pl.Int64)}
    for name, dtype in schema.items():
        numbers[f"missing:{name}"] = is_missing(name, dtype).sum().cast(pl.Int64)
        if dtype.is_numeric():
            numbers[f"column.min:{name}"] = finite(name, dtype).min()
            numbers[f"column.max:{name}"] = finite(name, dtype).max()
    kept = [name for name, dtype in schema.items() if not isinstance(dtype, _OPAQUE)]
    measures = SuiteMeasures(numbers, {}, {}, {}, [*kept, "__block__"], SAMPLE_ROWS)
    by_file = not dataset.snapshot.data.time
    block = block_key(dataset.snapshot.data).alias("__block__")
    batches = dataset.labelled_batches(_BATCH_ROWS, with_file=by_file)
    states = (measures.state_of(batch.with_columns(block)) for batch in batches)
    state = merge_in_steps(states, measures.merge)
    return _Reference(
        dataset.snapshot, schema, state["sample"], state["numbers"].row(0, named=True)
    )


def _expectations(reference: _Reference) -> Iterator[SuiteExpectation]:
    data = reference.snapshot.data
    rows = int(reference.numbers["rows"])
    yield _expect(
        "table_row_count_to_be_between", "critical", min_value=max(int(rows * _ROWS_SHARE), 1)
    )
    yield _expect(
        "table_columns_to_match_set",
        "critical",
        column_set=list(reference.schema),
        exact_match=False,
    )
    if data.ids:
        yield from _unique_ids(reference, list(data.ids))
    needed = {*data.ids, *filter(None, (data.time, data.group))}
    described = [*reference.snapshot.described_features, data.label]
    for name, dtype in reference.schema.items():
        yield from _types(name, dtype)
        yield from _missing(reference, name, is_needed=name in needed)
        if name in described and not isinstance(dtype, _OPAQUE):
            yield from _values(reference, name, dtype)


def _unique_ids(reference: _Reference, ids: list[str]) -> Iterator[SuiteExpectation]:
    if reference.rows.select(ids).is_duplicated().any():
        return
    if len(ids) == 1:
        yield _expect("column_values_to_be_unique", "critical", column=ids[0], mostly=0.99)
    else:
        yield _expect("compound_columns_to_be_unique", "critical", column_list=ids, mostly=0.99)


def _types(name: str, dtype: pl.DataType) -> Iterator[SuiteExpectation]:
    """The type on pandas, with the other one that whole numbers have where a value is missing."""
    if isinstance(dtype, _OPAQUE):
        return
    kinds = dict.fromkeys(
        str(pl.Series(name, values, dtype).to_arrow().to_pandas().dtype) for values in ([], [None])
    )
    if len(kinds) == 1:
        yield _expect("column_type_to_be", "critical", column=name, type_=next(iter(kinds)))
    elif "object" not in kinds:  # of a boolean, which then tells nothing
        yield _expect(
            "column_values_to_be_in_type_list", "critical", column=name, type_list=[*kinds]
        )


def _missing(reference: _Reference, name: str, *, is_needed: bool) -> Iterator[SuiteExpectation]:
    if is_needed and not reference.missing_share(name):
        yield _expect("column_values_to_not_be_null", "critical", column=name)
        return
    if isinstance(reference.schema[name], _OPAQUE):
        return
    share = math.floor((1.0 - reference.largest_missing_share(name) - 0.01) * 1_000) / 1_000
    if share > 0:
        yield _expect("column_values_to_not_be_null", "warning", column=name, mostly=share)


def _values(reference: _Reference, name: str, dtype: pl.DataType) -> Iterator[SuiteExpectation]:
    blocks = reference.blocks(name)
    if not blocks:
        return
    together = pl.concat(blocks)
    different = together.n_unique()
    is_set = is_text(dtype) or (dtype.is_integer() and different <= _MAX_NUMBERS)
    if is_set and different <= _MAX_SET:
        values = together.unique().sort().to_list()
        yield _expect(
            "column_values_to_be_in_set", "warning", column=name, value_set=values, mostly=0.99
        )
    elif dtype == pl.String:
        lengths = together.str.len_chars()
        low, high = int(str(lengths.min())), int(str(lengths.max()))
        yield _expect(
            "column_value_lengths_to_be_between", "warning", column=name, min_value=low // 2,
            max_value=2 * high, mostly=0.99,
        )  # fmt: skip
    if dtype.is_numeric():
        yield from _numbers(reference, name, blocks, is_set=is_set)
    if len(blocks) >= _MIN_BLOCKS and different > 1:
        yield from _distribution(name, blocks, together, is_set=is_set and different <= _MAX_SET)


def _numbers(
    reference: _Reference, name: str, blocks: list[pl.Series], *, is_set: bool
) -> Iterator[SuiteExpectation]:
    if reference.numbers[f"column.min:{name}"] is None:
        return  # all of its values are infinite
    low = float(reference.numbers[f"column.min:{name}"])
    high = float(reference.numbers[f"column.max:{name}"])
    margin = _SPAN_MARGIN * (high - low)
    # What is never negative, such as a distance or a count, does not become so.
    lowest = max(low - margin, 0.0) if low >= 0 else low - margin
    if not is_set:
        yield _expect(
            "column_values_to_be_between", "warning", column=name, min_value=_rounded(lowest),
            max_value=_rounded(high + margin), mostly=0.999,
        )  # fmt: skip
    means = np.array([float(str(block.cast(pl.Float64).mean())) for block in blocks])
    if len(means) >= _MIN_BLOCKS and np.isfinite(means).all():
        spread = _DEVIATIONS * float(means.std())
        yield _expect(
            "column_mean_to_be_between", "warning", column=name,
            min_value=_rounded(float(means.min()) - spread),
            max_value=_rounded(float(means.max()) + spread),
        )  # fmt: skip


def _distribution(
    name: str, blocks: list[pl.Series], together: pl.Series, *, is_set: bool
) -> Iterator[SuiteExpectation]:
    """The distribution, as near as blocks of the reference are to the whole of it."""
    partition: dict[str, Any]
    if is_set:
        values = together.unique().sort()
        shares = [_value_shares(block, values) for block in blocks]
        expected = _value_shares(together, values)
        partition = {"values": values.to_list(), "weights": expected.tolist()}
        held_out = {"tail_weight_holdout": _HOLDOUT}
    elif together.dtype.is_numeric():
        numbers = together.cast(pl.Float64).to_numpy()
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return
        bins = np.unique(np.quantile(numbers, np.linspace(0, 1, _BINS + 1)))
        if len(bins) < 3:
            return
        shares = [_bin_shares(block.cast(pl.Float64).to_numpy(), bins) for block in blocks]
        expected = _bin_shares(numbers, bins)
        partition = {"bins": bins.tolist(), "weights": expected.tolist()}
        held_out = {"tail_weight_holdout": _HOLDOUT, "internal_weight_holdout": _HOLDOUT}
    else:
        return
    smoothed = expected * (1 - _HOLDOUT) + _HOLDOUT / len(expected)
    # Kullback-Leibler divergences of the blocks, in nats.
    divergences = np.array([rel_entr(share, smoothed).sum() for share in shares])
    limit = float(divergences.max()) + _DEVIATIONS * float(divergences.std())
    yield _expect(
        "column_kl_divergence_to_be_less_than", "warning", column=name, partition_object=partition,
        threshold=_rounded(max(2.0 * limit, _MIN_DIVERGENCE)), **held_out,
    )  # fmt: skip


def _value_shares(values: pl.Series, of: pl.Series) -> NDArray[np.float64]:
    counts = dict(values.alias("value").value_counts().iter_rows())
    return np.array([counts.get(value, 0) for value in of.to_list()]) / len(values)


def _bin_shares(values: NDArray[np.float64], bins: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.histogram(values, bins)[0] / max(len(values), 1)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _expect(kind: str, severity: Severity, **kwargs: Any) -> SuiteExpectation:  # noqa: ANN401
    return SuiteExpectation(type=f"expect_{kind}", kwargs=kwargs, severity=severity)
