"""Numbers of a table as model inputs: standardised, or spread over piecewise-linear bins.

Windows are columns whose values are equally long lists of numbers, as of a series.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.contracts.errors import BadDataError
from perennial.contracts.section import Section


class NumericState(Section):
    """What is needed to encode one column; its nulls become zeros and, if seen, a mark."""

    mean: float
    scale: float
    has_nulls: bool
    edges: tuple[float, ...] = ()
    """Rising edges of the bins; empty when the column is standardised."""

    @property
    def width(self) -> int:
        """Return how many inputs the column takes, without its mark."""
        return max(len(self.edges) - 1, 1)

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values [B] → inputs [B, width]; NaN gives zeros.

        In bins, each input climbs from -0.5 to 0.5 while the value crosses its bin (piecewise
        linear encoding, Gorishniy et al. 2022), so inputs stay bounded for values never seen.
        """
        if self.edges:
            low, high = np.array(self.edges[:-1]), np.array(self.edges[1:])
            encoded = np.clip((values[:, None] - low) / (high - low), 0.0, 1.0) - 0.5
        else:
            encoded = (values[:, None] - self.mean) / self.scale
        return np.where(np.isnan(encoded), 0.0, encoded)

    def decode(self, inputs: Sequence[float]) -> float:
        """Inputs [width] → the value, limited to the edges when there are bins."""
        if not self.edges:
            return inputs[0] * self.scale + self.mean
        widths = np.diff(np.array(self.edges))
        return float(self.edges[0] + np.dot(np.array(inputs) + 0.5, widths))


def fit_numbers(train: pl.LazyFrame, names: Sequence[str], bins: int) -> dict[str, NumericState]:
    """Learn each column's statistics, one column in memory at a time; `bins` = 0 standardises."""
    return {name: _fit_column(column_values(train, name), bins) for name in names}


def column_values(table: pl.LazyFrame, name: str) -> NDArray[np.float64]:
    """Return a column in row order, nulls as NaN.

    Statistics are taken of this array, not by polars: its threads add up in an order that changes
    from call to call, and the last bits with it.
    """
    return (
        table.select(pl.col(name).cast(pl.Float64).fill_null(math.nan)).collect()[name].to_numpy()
    )


def encode_numbers(states: Mapping[str, NumericState], rows: pl.DataFrame) -> NDArray[np.float32]:
    """Return float32 [B, N]: the columns in order, then marks of those that can be missing."""
    encoded: list[NDArray[np.float64]] = []
    marks: list[NDArray[np.float64]] = []
    for name, state in states.items():
        values = rows[name].cast(pl.Float64).fill_null(math.nan).to_numpy()
        encoded.append(state.encode(values))
        if state.has_nulls:
            marks.append(np.isnan(values)[:, None].astype(np.float64))
    if not encoded:
        return np.zeros((rows.height, 0), dtype=np.float32)
    return np.concatenate([*encoded, *marks], axis=1, dtype=np.float32)


def num_inputs(states: Mapping[str, NumericState]) -> int:
    """Return the width of `encode_numbers`."""
    return sum(state.width + state.has_nulls for state in states.values())


def number_keys(states: Mapping[str, NumericState]) -> list[tuple[str, int]]:
    """Return the column and the place in it of each input of `encode_numbers`; -1 for marks."""
    values = [(name, place) for name, state in states.items() for place in range(state.width)]
    return [*values, *((name, -1) for name, state in states.items() if state.has_nulls)]


def describe_numbers(
    states: Mapping[str, NumericState], inputs: Sequence[float]
) -> Iterator[tuple[str, str]]:
    """Yield each column's name and value, read back from its inputs."""
    start, mark = 0, sum(state.width for state in states.values())
    for name, state in states.items():
        value = state.decode(inputs[start : start + state.width])
        start += state.width
        is_missing = state.has_nulls and inputs[mark] > 0.5
        mark += state.has_nulls
        # Six digits of the column's scale: what float32 keeps.
        rounded = round(value, 6 - math.ceil(math.log10(state.scale))) + 0.0
        yield name, "(missing)" if is_missing else f"{rounded:.4g}"


def _fit_column(values: NDArray[np.float64], bins: int) -> NumericState:
    known = values[~np.isnan(values)]
    if not len(known):
        return NumericState(mean=0.0, scale=1.0, has_nulls=True)
    shares = np.linspace(0.0, 1.0, bins + 1)
    edges = np.unique(np.quantile(known, shares, method="nearest")) if bins else np.zeros(0)
    return NumericState(
        mean=float(known.mean()),
        # Asked of the range: the deviation of equal values is not exactly zero.
        scale=float(known.std()) if known.min() < known.max() else 1.0,
        has_nulls=len(known) < len(values),
        edges=tuple(edges.tolist()) if len(edges) > 1 else (),
    )


class WindowState(Section):
    """What is needed to encode one column; all its places share mean and scale."""

    length: int
    mean: float
    scale: float

    def encode(self, column: pl.Series) -> NDArray[np.float64]:
        """Values → inputs [B, length]; missing ones become the mean, 0."""
        values = read_windows(column, self.length)
        return np.nan_to_num((values - self.mean) / self.scale)


def is_window(dtype: pl.DataType) -> bool:
    """Whether a column holds lists of numbers."""
    return (
        isinstance(dtype, pl.List | pl.Array)
        and pl.Series([], dtype=dtype.inner).dtype.is_numeric()
    )


def fit_windows(train: pl.LazyFrame, names: Sequence[str]) -> dict[str, WindowState]:
    """Learn length, mean and scale of each column, one column in memory at a time.

    Raises:
        BadDataError: a column has lists of several lengths, or none.
    """
    states = {}
    for name in names:
        values = read_windows(train.select(name).collect()[name])
        known = values[~np.isnan(values)]
        if not len(known):
            raise BadDataError(f"the lists of {name!r} are empty in the training split")
        scale = float(known.std()) if known.min() < known.max() else 1.0
        states[name] = WindowState(length=values.shape[1], mean=float(known.mean()), scale=scale)
    return states


def read_windows(column: pl.Series, length: int | None = None) -> NDArray[np.float64]:
    """Return the lists as an array [B, length]; NaN where a list or a number is missing.

    Raises:
        BadDataError: a list has another length than the first, or than `length`.
    """
    lists = column.cast(pl.List(pl.Float64))
    lengths = lists.list.len().drop_nulls()
    length = length if length is not None or not len(lengths) else int(lengths[0])
    if strange := lengths.filter(lengths != length).unique().to_list():
        raise BadDataError(
            f"the lists of {column.name!r} differ in length",
            evidence=f"{length} and {', '.join(map(str, strange[:3]))}",
            action="write windows of one length; pad the beginning of a series with nulls",
        )
    values = np.full((len(column), length or 0), np.nan)
    if not length:
        return values
    known = lists.is_not_null().to_numpy()
    values[known] = lists.drop_nulls().explode().to_numpy().reshape(-1, length)
    return values


def encode_windows(states: Mapping[str, WindowState], rows: pl.DataFrame) -> NDArray[np.float32]:
    """Return inputs float32 [B, N] of all columns, one after the other."""
    parts = [state.encode(rows[name]) for name, state in states.items()]
    empty = np.zeros((rows.height, 0))
    return np.concatenate([empty, *parts], axis=1, dtype=np.float32)
