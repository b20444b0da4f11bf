"""Numbers of a table as model inputs: standardised, or spread over piecewise-linear bins."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from components.contracts.section import Section


class NumericState(Section):
    """What is needed to encode one column; its nulls become zeros and, if seen, a mark."""

    mean: float
    scale: float
    has_nulls: bool
    edges: tuple[float, ...] = ()
    """Rising edges of the bins; empty when the column is standardised."""

    @property
    def width(self) -> int:
        """Inputs that the column takes, without its mark."""
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


def fit_numbers(train: pl.LazyFrame, names: list[str], bins: int) -> dict[str, NumericState]:
    """Learn each column's statistics; `bins` = 0 standardises."""
    if not names:
        return {}
    table = train.select(cs.by_name(names).cast(pl.Float64).fill_nan(None))
    means, scales, nulls = (
        table.select(statistic).collect().row(0, named=True)
        for statistic in (cs.all().mean(), cs.all().std(ddof=0), cs.all().null_count())
    )
    edges = _edges(table, names, bins)
    return {
        name: NumericState(
            mean=means[name] or 0.0,
            scale=scales[name] or 1.0,
            has_nulls=nulls[name] > 0,
            edges=edges.get(name, ()),
        )
        for name in names
    }


def encode_numbers(states: Mapping[str, NumericState], rows: pl.DataFrame) -> NDArray[np.float32]:
    """Inputs float32 [B, N]: the columns in order, then the marks of those that can be missing."""
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
    """How wide `encode_numbers` is."""
    return sum(state.width + state.has_nulls for state in states.values())


def describe_numbers(
    states: Mapping[str, NumericState], inputs: Sequence[float]
) -> Iterator[tuple[str, str]]:
    """Each column's value, read back from its inputs."""
    start, mark = 0, sum(state.width for state in states.values())
    for name, state in states.items():
        value = state.decode(inputs[start : start + state.width])
        start += state.width
        is_missing = state.has_nulls and inputs[mark] > 0.5
        mark += state.has_nulls
        # Six digits of the column's scale: what float32 keeps.
        rounded = round(value, 6 - math.ceil(math.log10(state.scale))) + 0.0
        yield name, "(missing)" if is_missing else f"{rounded:.4g}"


def _edges(table: pl.LazyFrame, names: list[str], bins: int) -> dict[str, tuple[float, ...]]:
    if not bins:
        return {}
    quantiles = [
        table.select(cs.all().quantile(index / bins, "nearest")).collect().row(0, named=True)
        for index in range(bins + 1)
    ]
    distinct = {
        name: sorted({row[name] for row in quantiles if row[name] is not None}) for name in names
    }
    return {name: tuple(edges) for name, edges in distinct.items() if len(edges) > 1}
