"""Hidden slices: search undeclared groups on which the challenger may be worse.

A shallow search over the columns: values of text, quarters of numbers, and pairs of conditions on
two columns. It only proposes: the rows that it searched must not judge its proposals, which Athey
and Imbens (2016) call honest.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.engine.evaluation.resampling import Blocks

Rows = NDArray[np.bool_]
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

PROPOSALS = 5  # the correction for their number costs each of them power
REFINED = 8  # single conditions that are searched for a second one
QUARTERS = (0.25, 0.5, 0.75)
FEW_VALUES = 12  # numbers with so few are taken one by one
MOST_VALUES = 30  # of a text column, the most frequent
# Proposals that share more than this of their rows count as one.
ALIKE = 0.5
CELLS = 50_000_000  # rows times columns that are held at once: 400 MB of numbers
_SEARCHABLE = ("Int", "UInt", "Float", "Boolean", "String", "Categorical", "Enum")


@dataclass(frozen=True)
class Condition:
    """A condition that selects the rows of a slice.

    Attributes:
        text: As shown to people, such as `distance > 900`.
        rows: Whether each row meets it, shape [N].
    """

    text: str
    rows: Rows


@dataclass(frozen=True)
class Column:
    """A column, cut into values or ranges.

    Attributes:
        names: Name of each value or range, shape [K].
        codes: Position of each row's value or range, in [0, K); -1 for none, shape [N].
    """

    names: tuple[str, ...]
    codes: Codes

    def condition(self, number: int) -> Condition:
        """Return the condition for one value or range."""
        return Condition(self.names[number], self.codes == number)


@dataclass(frozen=True)
class Excess:
    """How much the challenger exceeds the allowed regression, row by row.

    Attributes:
        sums: Weighted excess of each row; positive is beyond the allowed regression, shape [N].
        weights: Weight of each row, shape [N].
        blocks: Independent blocks of the rows.
        min_rows: Smaller groups are not proposed.
    """

    sums: Floats
    weights: Floats
    blocks: Blocks
    min_rows: int

    def scores(self, codes: Codes, count: int, rows: Rows) -> Floats:
        """Return each value's mean excess over its standard error between blocks, shape [K].

        Minus infinity if rows or blocks are too few.
        """
        used = rows & (codes >= 0)
        cell = self.blocks.index[used] * count + codes[used]
        shape = self.blocks.count, count

        def total(values: Floats | None) -> Floats:
            found = np.bincount(cell, weights=values, minlength=shape[0] * count)
            return found.reshape(shape).astype(np.float64)

        sums, weights, sizes = total(self.sums[used]), total(self.weights[used]), total(None)
        whole, days = weights.sum(axis=0), (sizes > 0).sum(axis=0)
        enough = (sizes.sum(axis=0) >= self.min_rows) & (days > 1) & (whole > 0)
        mean = np.divide(sums.sum(axis=0), whole, out=np.zeros(count), where=enough)
        spread = ((sums - mean * weights) ** 2).sum(axis=0)
        error = np.sqrt(np.divide(spread, whole**2, out=np.zeros(count), where=enough))
        scored = enough & (error > 0)
        return np.where(scored, mean / np.where(scored, error, 1.0), -np.inf)


def searchable_columns(snapshot: Snapshot, declared: Collection[str]) -> tuple[str, ...]:
    """Return features and meta columns with one plain value per row, as many as fit in memory.

    Declared slices are excluded: they are judged anyway, and on all rows.
    """
    data, columns = snapshot.data, snapshot.columns
    wanted = (*snapshot.task_columns.features, *data.meta)
    plain = [
        name
        for name in dict.fromkeys(wanted)
        if name not in {*data.text, *declared}
        and name != data.label
        and columns[name].startswith(_SEARCHABLE)
    ]
    rows = max(snapshot.split_rows.get(Split.TEST, 0), 1)
    return tuple(plain[: CELLS // rows])


def propose(
    frame: pl.DataFrame, columns: Sequence[str], harm: Excess, searched: Rows
) -> list[Condition]:
    """Propose the groups on which the challenger most exceeds the allowed regression, worst first.

    Args:
        frame: All rows.
        columns: Columns to search.
        harm: Excess of all rows.
        searched: Whether the search may use each row, shape [N].
    """
    cut = [column for name in columns if (column := cut_column(frame[name], searched)) is not None]
    single = sorted(_conditions(cut, harm, searched), key=lambda found: -found[0])[:REFINED]
    found = list(single)
    for score, condition in single:
        for better, second in _conditions(cut, harm, searched & condition.rows):
            if better > score:
                both = Condition(
                    f"{condition.text} and {second.text}", condition.rows & second.rows
                )
                found.append((better, both))
    chosen: list[Condition] = []
    for score, condition in sorted(found, key=lambda found: -found[0]):
        alike = any(_overlap(condition.rows, other.rows) > ALIKE for other in chosen)
        if score > 0 and not alike:
            chosen.append(condition)
        if len(chosen) == PROPOSALS:
            break
    return chosen


def cut_column(column: pl.Series, searched: Rows) -> Column | None:
    """Cut a column into values, or quarters of the searched rows; None if all values are equal."""
    name = column.name
    if column.dtype.is_numeric() and column.filter(pl.Series(searched)).n_unique() > FEW_VALUES:
        return _quarters(name, column.cast(pl.Float64).to_numpy(), searched)
    texts = column.cast(pl.String).fill_null("(missing)")
    frequent = texts.value_counts(sort=True)[name].head(MOST_VALUES).to_list()
    if len(frequent) < 2:
        return None
    numbers = {value: number for number, value in enumerate(frequent)}
    codes = texts.replace_strict(numbers, default=-1, return_dtype=pl.Int64).to_numpy()
    return Column(tuple(f"{name} = {value}" for value in frequent), codes)


def _quarters(name: str, values: Floats, searched: Rows) -> Column | None:
    finite = np.isfinite(values)
    if not (finite & searched).any():
        return None
    edges = np.unique(np.quantile(values[finite & searched], QUARTERS))
    codes = np.searchsorted(edges, values, side="left")
    inner = [f"{low:.4g} < {name} ≤ {high:.4g}" for low, high in pairwise(edges)]
    names = (f"{name} ≤ {edges[0]:.4g}", *inner, f"{name} > {edges[-1]:.4g}", f"{name} missing")
    return Column(names, np.where(finite, codes, len(names) - 1).astype(np.int64))


def _conditions(
    columns: Sequence[Column], harm: Excess, rows: Rows
) -> Iterator[tuple[float, Condition]]:
    for column in columns:
        scores = harm.scores(column.codes, len(column.names), rows)
        for number in np.flatnonzero(np.isfinite(scores)):
            yield float(scores[number]), column.condition(int(number))


def _overlap(one: Rows, other: Rows) -> float:
    return float((one & other).sum() / max(1, (one | other).sum()))
