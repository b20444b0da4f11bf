"""Label facts: its kind, its classes, and their rows in every split."""

from dataclasses import dataclass
from typing import Literal

import polars as pl

from perennial.contracts.data import Split
from perennial.data.dataset import SPLIT_COLUMN
from perennial.validate_data.columns import finite
from perennial.validate_data.sketches import BlockKey

LabelKind = Literal["classes", "number", "text"]

# More different whole numbers than this are amounts; the tasks' losses are costly beyond it too.
MAX_CLASSES = 100
_MAX_COUNTED = 100_000


@dataclass(frozen=True)
class LabelFacts:
    """The label over the whole snapshot.

    Attributes:
        kind: Classes, a number, or free text.
        classes: Rows of each class in each split, most frequent class first; else empty.
        num_values: Different values seen; counting stops at 100,000.
    """

    kind: LabelKind
    classes: dict[str, dict[Split, int]]
    num_values: int

    @property
    def untrained(self) -> tuple[str, ...]:
        """Classes that are validated or tested but never trained on."""
        return tuple(name for name, rows in self.classes.items() if not rows[Split.TRAIN])

    @property
    def rarest_rows(self) -> int:
        """Rows of the rarest class in the split where it is rarest."""
        return min(
            (rows for splits in self.classes.values() for rows in splits.values()), default=0
        )

    @property
    def smallest_share(self) -> float:
        """Share of the rarest class among the rows of all splits."""
        totals = [sum(splits.values()) for splits in self.classes.values()]
        return min(totals, default=0) / max(sum(totals), 1)


class LabelCounts:
    """Counts label values per split and block."""

    def __init__(
        self, label: str, dtype: pl.DataType, kind: Literal["auto", "classes", "number", "text"]
    ) -> None:
        self._label, self._dtype, self._kind = label, dtype, kind
        self._counts = pl.DataFrame()
        self._is_full = False

    def add(self, rows: pl.DataFrame) -> None:
        """Take in rows with the label, the split and the column `__block__`."""
        if self._is_full:
            return
        if self._kind == "text":  # hashes, for what is counted are only different values
            rows = rows.with_columns(
                pl.when(pl.col(self._label).is_not_null())
                .then(pl.col(self._label).hash())
                .alias(self._label)
            )
        values = (
            finite(self._label, self._dtype) if self._dtype.is_numeric() else pl.col(self._label)
        )
        counted = (
            rows.select(values.alias("value"), pl.col(SPLIT_COLUMN).alias("split"), "__block__")
            .drop_nulls("value")
            .group_by("value", "split", "__block__")
            .len("rows")
        )
        parts = [self._counts, counted] if self._counts.width else [counted]
        self._counts = (
            pl.concat(parts).group_by("value", "split", "__block__").agg(pl.col("rows").sum())
        )
        self._is_full = self._counts["value"].n_unique() > _MAX_COUNTED

    def result(self) -> LabelFacts:
        """The label's facts."""
        kind = self._resolved_kind()
        return LabelFacts(
            kind=kind,
            classes=self._classes() if kind == "classes" else {},
            num_values=self._counts["value"].n_unique(),
        )

    def means(self) -> dict[BlockKey, float]:
        """Share of the second of two classes per block; empty for any other label."""
        values = self._counts["value"].unique().sort().to_list()
        if self._resolved_kind() != "classes" or len(values) != 2:
            return {}
        is_second = pl.col("value") == values[1]
        table = (
            self._counts.drop_nulls("__block__")
            .group_by("__block__")
            .agg((pl.col("rows").filter(is_second).sum() / pl.col("rows").sum()).alias("mean"))
        )
        return dict(table.iter_rows())

    def _resolved_kind(self) -> LabelKind:
        if self._kind != "auto":
            return self._kind
        if not self._dtype.is_numeric():
            return "classes"
        values = self._counts["value"].unique().cast(pl.Float64)
        whole = bool((values == values.floor()).all())
        return (
            "classes" if whole and values.len() <= MAX_CLASSES and not self._is_full else "number"
        )

    def _classes(self) -> dict[str, dict[Split, int]]:
        used = self._counts.drop_nulls("split").with_columns(pl.col("value").cast(pl.String))
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
