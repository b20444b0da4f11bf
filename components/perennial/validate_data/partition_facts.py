"""Partition facts: measures the rows of one partition, in memory that does not grow with them."""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain

import polars as pl
import polars.selectors as cs
from pydantic import JsonValue

from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import SPLIT_COLUMN, Dataset, block_start
from perennial.data.opaque_columns import derive, derived_columns, opaque_columns
from perennial.validate_data.columns import (
    column_measures,
    finite,
    is_missing,
    is_text,
    measure_columns,
)
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.distributions import count_numbers, count_texts
from perennial.validate_data.duplicates import SPLITS, count_keys
from perennial.validate_data.labels import (
    count_few_labels,
    count_labels,
    label_value,
    opaque_label_kind,
    sum_labels,
)
from perennial.validate_data.sketches import count_blocks
from perennial.validate_data.state import FactsState, merge, merge_in_steps
from perennial.validate_data.state_store import Measurement

FACTS_VERSION = 3
"""Raised when a state's tables or what they count change."""
BATCH_ROWS = 250_000
_NO_LABELS = (pl.Duration, pl.Map, pl.Object)
KEYS, DISTINCT = "keys:", "distinct:"
"""Begin the names of tables of keys, and the kinds of those that are values of a text column."""


def facts_measurement(snapshot: Snapshot, section: ExpectationsSection) -> Measurement:
    """Return the measurement of facts; limits on shares and windows are not part of the states."""
    split = snapshot.split.model_dump(mode="json", exclude={"train_days", "test_days"})
    limits: dict[str, JsonValue] = {
        name: column.model_dump(mode="json", include={"min", "max", "allowed", "matches"})
        for name, column in section.columns.items()
    }
    settings: dict[str, JsonValue] = {
        "version": FACTS_VERSION,
        "data": snapshot.data.model_dump(mode="json", exclude={"uri"}),
        "columns": dict(snapshot.columns),
        "split": split,
        "windows": bool(snapshot.split.train_days or snapshot.split.test_days),
        "limits": limits,
    }
    return Measurement("facts", settings, partial(partition_facts, section=section), merge)


def partition_facts(snapshot: Snapshot, section: ExpectationsSection) -> FactsState:
    """Measure the rows of a snapshot of one partition.

    Raises:
        BadDataError: the label cannot be counted, or the partition cannot be decoded.
    """
    dataset = Dataset(snapshot)
    measuring = Measuring(snapshot, dataset.schema(), section)
    # An empty batch first: a partition without rows needs tables to merge, too.
    batches = chain([measuring.no_rows()], dataset.labelled_batches(BATCH_ROWS))
    return merge_in_steps(map(measuring.state_of, batches), merge)


class Measuring:
    """Measures every batch of one dataset."""

    def __init__(self, snapshot: Snapshot, schema: pl.Schema, section: ExpectationsSection) -> None:
        self._data = snapshot.data
        self._is_windowed = bool(snapshot.split.train_days or snapshot.split.test_days)
        data = snapshot.data
        features = snapshot.described_features
        label = schema[data.label]
        is_opaque = opaque_label_kind(data, str(label)) is not None
        if label.base_type() in _NO_LABELS:
            raise BadDataError(
                f"data.label {data.label!r} is {label}, which cannot be counted",
                action="write the label as a number, a text, a boolean, a time or bytes, or as a "
                "list or structure of them",
            )
        self._schema = schema
        self._opaque = opaque_columns(
            data, schema, dict.fromkeys([*features, *([data.label] if is_opaque else [])])
        )
        self._derived = dict.fromkeys(derived_columns(self._opaque), pl.Float64())
        _refuse_clashes(schema, self._derived)
        self.features: dict[str, pl.DataType] = {
            **{name: schema[name] for name in features if name not in self._opaque},
            **self._derived,
        }
        self._missing = {name: is_missing(name, dtype) for name, dtype in self.features.items()}
        self._measures = column_measures(
            snapshot, pl.Schema({**schema, **self._derived}), section.columns, opaque=self._opaque
        )
        self._label = label_value(data.label, label, is_opaque=is_opaque)
        self._is_opaque = is_opaque
        is_number = label.is_numeric() or label == pl.Boolean
        self._number = finite(data.label, label) if is_number else pl.lit(None, pl.Float64)
        self._few = pl.lit(None, pl.Int8) if is_number or is_opaque else self._label
        self._used = list(features)

    def no_rows(self) -> pl.DataFrame:
        """Return an empty batch."""
        return pl.DataFrame(schema={**self._schema, SPLIT_COLUMN: pl.String()})

    def state_of(self, batch: pl.DataFrame) -> FactsState:
        """Measure one batch."""
        # Codes of categories differ between files; their texts do not. In one chunk, as polars
        # groups rows of several ones at half the speed.
        batch = batch.with_columns((cs.categorical() | cs.enum()).cast(pl.String)).rechunk()
        batch = batch.with_columns(
            pl.col(SPLIT_COLUMN).cast(SPLITS),
            self._block().alias("__block__"),
            self._day().alias("__day__"),
            batch.select(self._used).hash_rows().alias("__features__"),
            *derive(batch, self._opaque),
        )
        rest = [name for name in self._schema.names() if name not in self._used]
        row = batch.select("__features__", *rest).hash_rows()
        batch = batch.with_columns(row.alias("__key__"))
        numeric = {name: dtype for name, dtype in self.features.items() if dtype.is_numeric()}
        names = [name for name, dtype in self.features.items() if is_text(dtype)]
        texts = count_texts(batch, names)
        described = batch
        if batch["__block__"].null_count():
            described = batch.filter(pl.col("__block__").is_not_null())
        return FactsState.of(
            {
                "columns": measure_columns(batch, self._measures),
                "days": self._count_days(batch),
                "blocks": count_blocks(described, self._missing),
                "numbers": count_numbers(described, numeric),
                "texts": texts.drop_nulls("block"),
                **{
                    f"{KEYS}{kind}": count_keys(keys)
                    for kind, keys in self._keys(batch, texts, names).items()
                },
                "labels": count_labels(batch, self._label),
                "label_sums": sum_labels(described, self._number),
                "few_labels": count_few_labels(described, self._few),
                "sample": self._sampled(batch),
            }
        )

    def _block(self) -> pl.Expr:
        """The block's number: its first day since 1970; 0 for the one of a file."""
        return block_start(self._data).cast(pl.Int32) if self._data.time else pl.lit(0, pl.Int32)

    def _day(self) -> pl.Expr:
        """The day where it decides, with the newest time, whether a row is in its split."""
        is_needed = self._is_windowed and self._data.time
        return pl.col(self._data.time or "").dt.date() if is_needed else pl.lit(None, pl.Date)

    def _count_days(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Rows by day, in UTC where times have a zone; null for a missing time."""
        time = self._data.time
        day = pl.lit(None, pl.Date)
        if time:
            zone = getattr(batch.schema[time], "time_zone", None)
            moment = pl.col(time).dt.convert_time_zone("UTC") if zone else pl.col(time)
            day = moment.dt.date()
        return batch.group_by(day.alias("day")).agg(pl.len().cast(pl.Int64).alias("rows"))

    def _keys(
        self, batch: pl.DataFrame, texts: pl.DataFrame, names: Iterable[str]
    ) -> dict[str, pl.DataFrame]:
        """Hashes of whole rows, of features, of ids and of single columns."""
        data = self._data
        split = batch.select(pl.col(SPLIT_COLUMN).alias("split"))
        if self._is_windowed:
            split = split.with_columns(batch["__day__"].alias("day"))
        features, label = batch["__features__"], batch[data.label].hash().alias("label")
        labelled = pl.DataFrame([features, label]).hash_rows().alias("key")
        keys = {
            "row": split.with_columns(batch["__key__"].alias("key")),
            "features": pl.DataFrame([features.alias("key"), label]),
            "labelled_features": split.with_columns(labelled),
        }
        if data.ids:
            keys["id"] = split.with_columns(batch.select(data.ids).hash_rows().alias("key"))
        single = {f"repeated:{name}": name for name in self._opaque}
        single |= {"group": data.group} if data.group else {}
        for kind, name in single.items():
            known = batch[name].is_not_null()
            key = batch.select(name).hash_rows().alias("key")
            keys[kind] = split.with_columns(key).filter(known)
        for name in names:
            hashed = pl.col("value").hash().alias("key")
            own = texts.filter(pl.col("column") == name)
            keys[f"{DISTINCT}{name}"] = own.select(hashed, "rows")
        return keys

    def _sampled(self, batch: pl.DataFrame) -> pl.DataFrame:
        # Pictures and free texts themselves are too large to keep; their statistics are not.
        label = [] if self._is_opaque else [self._data.label]
        used = dict.fromkeys([*self.features, *label])
        stratum = pl.col("__block__") if self._is_windowed else pl.lit(None, pl.Int32)
        labelled = batch.filter(pl.col(SPLIT_COLUMN).is_not_null())
        own = (SPLIT_COLUMN, "__day__", "__key__")
        time, group = self._data.time, self._data.group
        return labelled.select(
            *used,
            *own,
            stratum.alias("__stratum__"),
            (pl.col(time).dt.epoch("us") if time else pl.lit(None, pl.Int64)).alias("__time__"),
            (pl.col(group).hash() if group else pl.lit(0, pl.UInt64)).alias("__group__"),
        )


def _refuse_clashes(schema: pl.Schema, derived: Mapping[str, pl.DataType]) -> None:
    clashes = sorted(set(derived) & set(schema.names()))
    if clashes:
        raise BadDataError(
            f"the column {clashes[0]!r} has the name of a statistic that is computed here",
            evidence=f"statistics of pictures, lists and texts are called {', '.join(clashes)}",
            action="rename these columns",
        )
