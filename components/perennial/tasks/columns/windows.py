"""Windows of a table: columns whose values are equally long lists of numbers, as of a series."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.contracts.errors import BadDataError
from perennial.contracts.section import Section


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
    """Inputs float32 [B, N] of all columns, one after the other."""
    parts = [state.encode(rows[name]) for name, state in states.items()]
    empty = np.zeros((rows.height, 0))
    return np.concatenate([empty, *parts], axis=1, dtype=np.float32)
