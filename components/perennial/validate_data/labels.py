"""Label facts: its kind, its classes, and their rows in every split."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args
from unicodedata import normalize

import numpy as np
import polars as pl

from perennial.contracts.data import DataSection, Split
from perennial.validate_data.columns import finite
from perennial.validate_data.samples import level_of, lowest_level
from perennial.validate_data.sketches import BlockKey

OpaqueLabelKind = Literal["text", "list", "structure", "bytes"]
LabelKind = Literal["classes", "number"] | OpaqueLabelKind
OPAQUE = frozenset(get_args(OpaqueLabelKind))
"""Counted by their hashes: a value has neither a class nor a mean."""

# More different whole numbers than this are amounts; the tasks' losses are costly beyond it too.
MAX_CLASSES = 100
SURE_CLASSES = 20
"""Up to so many different whole numbers are classes; more may be amounts, such as years of age."""
MAX_VALUES = 10_000
"""Different label values that are counted; of more, a sample with all their rows."""
LIST_MARKS = (",", ";", "|")
_OPAQUE_TYPES: dict[str, OpaqueLabelKind] = {
    "List": "list",
    "Array": "list",
    "Struct": "structure",
    "Binary": "bytes",
}
_VALUE = ("value", "split", "day")
_FEW = 3
# In two halves, 2^36 mantissas add up within 64 bits.
_MANTISSA_BITS, _LOW_BITS = 53, 26


@dataclass(frozen=True)
class LabelFacts:
    """The label over the whole snapshot.

    Attributes:
        kind: Classes, a number, or what is counted by its hash alone.
        classes: Rows of each class in each split, most frequent class first; else empty.
        num_values: Different values; estimated on a sample of them beyond `MAX_VALUES`.
    """

    kind: LabelKind
    classes: dict[str, dict[Split, int]]
    num_values: int

    @property
    def untrained(self) -> tuple[str, ...]:
        """Classes that are validated or tested but never trained on."""
        return tuple(name for name, rows in self.classes.items() if not rows[Split.TRAIN])

    @property
    def are_lists(self) -> bool:
        """Whether each untrained class is a list of labels, as `a,b`, that are trained on."""
        untrained = set(self.untrained)
        for mark in LIST_MARKS:
            trained = {
                part.strip()
                for name in self.classes.keys() - untrained
                for part in name.split(mark)
            }
            if untrained and all(
                mark in name and trained.issuperset(map(str.strip, name.split(mark)))
                for name in untrained
            ):
                return True
        return False

    @property
    def rarest_rows(self) -> int:
        """Rows of the rarest class in the split where it is rarest."""
        return min(
            (rows for splits in self.classes.values() for rows in splits.values()), default=0
        )

    @property
    def look_alikes(self) -> tuple[str, ...]:
        """Classes that another one equals but for case, spaces or the form of a character."""
        groups: dict[str, list[str]] = {}
        for name in self.classes:
            plain = " ".join(normalize("NFKC", name).casefold().split())
            groups.setdefault(plain, []).append(name)
        return tuple(name for names in groups.values() if len(names) > 1 for name in names)

    @property
    def smallest_share(self) -> float:
        """Share of the rarest class among the rows of all splits."""
        totals = [sum(splits.values()) for splits in self.classes.values()]
        return min(totals, default=0) / max(sum(totals), 1)


def count_labels(rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """Count label values by `__split__` and `__day__`; free text is counted by its hash.

    The day is null where it decides nothing, the value where the label is missing.
    """
    counts = (
        rows.group_by(
            value.alias("value"),
            pl.col("__split__").alias("split"),
            pl.col("__day__").alias("day"),
        )
        .len("rows")
        .drop_nulls("value")
    )
    return counts.with_columns(
        level_of(pl.col("value").hash()).alias("level"),
        pl.lit(0, pl.UInt8).alias("cut"),
        pl.col("rows").cast(pl.Int64),
    )


def merge_labels(table: pl.DataFrame) -> pl.DataFrame:
    """Add up the rows of each value, on a sample of values where there are too many."""
    counts = table.group_by(*_VALUE, "level").agg(pl.col("rows").sum())
    needed = lowest_level(counts.unique("value")["level"], MAX_VALUES)
    cut = max(needed, int(table.select(pl.col("cut").max()).item() or 0))
    kept = counts.filter(pl.col("level") >= cut).with_columns(pl.lit(cut, pl.UInt8).alias("cut"))
    return kept.select(table.columns).sort(_VALUE)


def opaque_label_kind(data: DataSection, dtype: str) -> OpaqueLabelKind | None:
    """Return the kind of a label without classes or mean, such as tags or a mask.

    `dtype` is polars' type as text.
    """
    return "text" if data.label in data.text else _OPAQUE_TYPES.get(dtype.partition("(")[0])


def label_value(label: str, dtype: pl.DataType, *, is_opaque: bool) -> pl.Expr:
    """Return the label as it is counted: finite numbers, texts, or hashes of opaque values."""
    column = pl.col(label)
    if is_opaque:
        return pl.when(column.is_not_null()).then(column.hash())
    return finite(label, dtype) if dtype.is_numeric() else column


def label_facts(counts: pl.DataFrame, kind: LabelKind | Literal["auto"]) -> LabelFacts:
    """Return the facts of counted labels; `split` is null for rows that no split uses."""
    values = counts["value"].unique()
    factor = 1 << int(counts.select(pl.col("cut").max()).item() or 0)
    resolved = _resolved_kind(values, kind, is_sample=factor > 1)
    return LabelFacts(
        kind=resolved,
        classes=_classes(counts) if resolved == "classes" else {},
        num_values=values.len() * factor,
    )


def _resolved_kind(
    values: pl.Series, kind: LabelKind | Literal["auto"], *, is_sample: bool
) -> LabelKind:
    if kind != "auto":
        return kind
    if not values.dtype.is_numeric():
        return "classes"
    numbers = values.cast(pl.Float64)
    is_whole = bool((numbers == numbers.floor()).all())
    return "classes" if is_whole and values.len() <= MAX_CLASSES and not is_sample else "number"


def _classes(counts: pl.DataFrame) -> dict[str, dict[Split, int]]:
    used = counts.drop_nulls("split").with_columns(pl.col("value").cast(pl.String))
    order = (
        used.group_by("value")
        .agg(pl.col("rows").sum())
        .sort(["rows", "value"], descending=[True, False])
    )
    rows = {(value, split): 0 for value in order["value"] for split in Split}
    for value, split, count in (
        used.group_by("value", "split").agg(pl.col("rows").sum()).iter_rows()
    ):
        rows[value, Split(split)] = count
    return {value: {split: rows[value, split] for split in Split} for value in order["value"]}


def sum_labels(rows: pl.DataFrame, label: pl.Expr) -> pl.DataFrame:
    """Add up a numeric label in each block without rounding, so that the order cannot matter.

    A double is m x 2^e with a whole m of 53 bits, kept in two parts whose sums fit 64 bits.

    Returns:
        `block`, `exponent`, sums of the parts `high` and `low`, and `rows`.
    """
    values = rows.select(pl.col("__block__").alias("block"), label.cast(pl.Float64).alias("label"))
    values = values.drop_nulls()
    mantissas, exponents = np.frexp(values["label"].to_numpy())
    whole = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
    return values.select(
        "block",
        pl.Series("exponent", exponents, pl.Int32),
        pl.Series("high", whole >> _LOW_BITS, pl.Int64),
        pl.Series("low", whole & ((1 << _LOW_BITS) - 1), pl.Int64),
        pl.lit(1, pl.Int64).alias("rows"),
    )


def mean_labels(sums: pl.DataFrame) -> dict[BlockKey, float]:
    """Return the mean label of each block, correctly rounded."""
    totals: dict[BlockKey, tuple[Fraction, int]] = {}
    for block, exponent, high, low, rows in sums.iter_rows():
        total, count = totals.get(block, (Fraction(0), 0))
        part = Fraction((high << _LOW_BITS) + low) * Fraction(2) ** (exponent - _MANTISSA_BITS)
        totals[block] = total + part, count + rows
    return {block: float(total / count) for block, (total, count) in totals.items()}


def count_few_labels(rows: pl.DataFrame, value: pl.Expr) -> pl.DataFrame:
    """Count in each block the label values that come first in their order."""
    keys = (pl.col("__block__").alias("block"), value.alias("value"))
    present = rows.select(keys).drop_nulls()
    return present.group_by("block", "value").agg(pl.len().cast(pl.Int64).alias("rows"))


def merge_few_labels(table: pl.DataFrame) -> pl.DataFrame:
    """Add up the counts of the first three values: enough to know whether there are just two."""
    first = table["value"].unique().sort().head(_FEW)
    kept = table.filter(pl.col("value").is_in(first.implode()))
    return kept.group_by("block", "value").agg(pl.col("rows").sum()).sort("block", "value")


def shares_of_second(counts: pl.DataFrame) -> dict[BlockKey, float]:
    """Return the share of the second of two values in each block; empty for more or fewer."""
    values = counts["value"].unique().sort()
    if values.len() != 2:
        return {}
    is_second = pl.col("value") == values[1]
    share = pl.col("rows").filter(is_second).sum() / pl.col("rows").sum()
    return dict(counts.group_by("block").agg(share).iter_rows())
