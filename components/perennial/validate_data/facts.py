"""Facts: measurements of a snapshot, in one streaming pass over its rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import polars as pl
import polars.selectors as cs

from perennial.contracts.block import BlockFile, by_name
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import BlockSketch, FactValue
from perennial.data.dataset import SPLIT_COLUMN, Dataset, block_key
from perennial.data.opaque_columns import derive, derived_columns, opaque_columns
from perennial.data.parquet_files import LIBRARY_ERRORS
from perennial.validate_data.columns import (
    ColumnCounts,
    column_measures,
    finite,
    is_missing,
    is_text,
)
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.duplicates import KeySample, Repeats
from perennial.validate_data.labels import LabelCounts, LabelFacts
from perennial.validate_data.leakage import leakage_aucs
from perennial.validate_data.sketches import (
    BlockCounts,
    BlockKey,
    Place,
    RowSample,
    block_capacity,
    block_sketches,
)

BATCH_ROWS = 100_000
MAX_FILES = 1_000
"""Sketched without a time column; a sketch of 25 columns takes 30 kB."""
# Fewer sampled values are not enough to estimate how many different ones a column has.
_MIN_DISTINCT_ROWS = 1_000
_NO_LABELS = (pl.Struct, pl.List, pl.Array, pl.Binary, pl.Duration, pl.Map, pl.Object)
_COUNTS_AS_SHARES = ("missing", "outside", "unlisted", "unmatched", "unreadable", "blank")


@dataclass(frozen=True)
class Facts:
    """Result of one pass.

    Attributes:
        values: Fact → value; facts about a column are named `fact:column`.
        blocks: Sketches in time order; without a time column, of files by name.
        opaque: Columns of pictures, lists or free text, with their derived columns' names.
    """

    values: dict[str, FactValue]
    label: LabelFacts
    blocks: tuple[BlockSketch, ...]
    opaque: dict[str, list[str]]


def gather_facts(dataset: Dataset, section: ExpectationsSection, now: datetime) -> Facts:
    """Measure a dataset; memory is bounded whatever its size.

    Raises:
        BadDataError: a partition cannot be decoded.
    """
    try:
        gathering = _Gathering(dataset.snapshot, dataset.scan().collect_schema(), section, now)
        by_file = not dataset.snapshot.data.time
        for batch in dataset.labelled_batches(BATCH_ROWS, with_file=by_file):
            gathering.add(batch)
        return gathering.facts()
    except LIBRARY_ERRORS as error:
        raise BadDataError(
            "the values of a column cannot be measured",
            evidence=f"{type(error).__name__}: {error}",
            action="write the column that this names as numbers, texts or times, or leave it out",
        ) from error


class _Gathering:
    """Hands every batch to each accumulator and puts their results together."""

    def __init__(
        self, snapshot: Snapshot, schema: pl.Schema, section: ExpectationsSection, now: datetime
    ) -> None:
        self._snapshot, self._schema, self._section = snapshot, schema, section
        self._paths = snapshot.paths
        self._files = sorted(range(len(self._paths)), key=lambda file: by_name(self._paths[file]))
        data = snapshot.data
        features = snapshot.task_columns.features
        label = schema[data.label]
        if label.base_type() in _NO_LABELS:
            raise BadDataError(
                f"data.label {data.label!r} is {label}",
                evidence="only numbers, texts, booleans and times can be counted and compared",
                action="write the label as one of these",
            )
        own_text = [data.label] if data.label in data.text else []
        self._opaque = opaque_columns(data, schema, dict.fromkeys([*features, *own_text]))
        derived = dict.fromkeys(derived_columns(self._opaque), pl.Float64())
        self._features: dict[str, pl.DataType] = {
            **{name: schema[name] for name in features if name not in self._opaque},
            **derived,
        }
        _refuse_clashes(schema, derived)
        number = finite(data.label, label) if label.is_numeric() or label == pl.Boolean else None
        missing = {name: is_missing(name, dtype) for name, dtype in self._features.items()}
        self._columns = ColumnCounts(
            column_measures(
                snapshot,
                pl.Schema({**schema, **derived}),
                section.columns,
                opaque=self._opaque,
                now=now,
            )
        )
        self._labels = LabelCounts(data.label, label, "text" if own_text else section.label_kind)
        self._blocks = BlockCounts(missing, number)
        self._sample = RowSample(block_capacity(_num_blocks(snapshot)))
        self._keys = {name: KeySample() for name in self._key_columns()}

    def add(self, batch: pl.DataFrame) -> None:
        """Measure one batch."""
        # Codes of categories differ between files; their texts do not.
        batch = batch.with_columns((cs.categorical() | cs.enum()).cast(pl.String))
        block = block_key(self._snapshot.data)
        if len(self._files) > MAX_FILES and not self._snapshot.data.time:
            # The last ones by name are often the newest.
            block = pl.when(block.is_in(self._files[-MAX_FILES:])).then(block)
        batch = batch.with_columns(
            block.alias("__block__"),
            batch.select(self._schema.names()).hash_rows().alias("__key__"),
            *derive(batch, self._opaque),
        )
        self._columns.add(batch)
        self._labels.add(batch)
        self._blocks.add(batch)
        # Pictures and texts themselves are too large to keep; their statistics are not.
        used = dict.fromkeys([*self._features, self._snapshot.data.label])
        self._sample.add(batch.select(*used, SPLIT_COLUMN, "__block__", "__key__"))
        for name, columns in self._key_columns().items():
            self._keys[name].add(self._keyed(name, columns, batch))

    def facts(self) -> Facts:
        """Return all measurements."""
        label = self._labels.result()
        sample = self._sample.rows()
        counts = self._blocks.result()
        aucs = leakage_aucs(
            sample.filter(pl.col(SPLIT_COLUMN).is_not_null()),
            self._features,
            self._snapshot.data.label,
            label.kind,
        )
        values: dict[str, FactValue] = {
            **self._table_facts(label),
            **self._column_facts(),
            **_distinct_shares(sample, self._features),
            **{f"leakage_auc:{name}": round(auc, 4) for name, auc in aucs.items()},
        }
        means = self._labels.means() or _label_means(counts)
        blocks = block_sketches(counts, sample, self._features, means, self._place_of)
        if not self._snapshot.data.time:
            blocks = tuple(sorted(blocks, key=lambda block: by_name(block.files[0].path)))
        opaque = {name: derived_columns({name: kind}) for name, kind in self._opaque.items()}
        return Facts(values, label, blocks, opaque)

    def _place_of(self, key: BlockKey) -> Place:
        if isinstance(key, int):
            file = self._snapshot.files[key]
            return Place(files=(BlockFile(path=self._paths[key], sha256=file.sha256),))
        start = datetime(key.year, key.month, key.day)
        return Place(start, start + timedelta(days=self._snapshot.data.block_days))

    def _table_facts(self, label: LabelFacts) -> dict[str, FactValue]:
        repeats = {name: keys.repeats() for name, keys in self._keys.items()}
        snapshot = self._snapshot
        facts: dict[str, FactValue] = {
            f"{split.value}_rows": rows for split, rows in snapshot.split_rows.items()
        }
        facts["newest"] = snapshot.time_max.isoformat() if snapshot.time_max else None
        facts["label_kind"] = label.kind
        facts["label_values"] = label.num_values
        if label.kind == "classes":
            facts["rarest_class_rows"] = label.rarest_rows
            facts["rarest_class_share"] = label.smallest_share
            facts["untrained_classes"] = len(label.untrained)
        return facts | _repeat_facts(repeats)

    def _column_facts(self) -> dict[str, FactValue]:
        counts = self._columns.result()
        rows = int(str(counts.pop("rows")))
        facts: dict[str, FactValue] = {"rows": rows}
        for name, value in counts.items():
            kind, _, column = name.partition(":")
            if kind == "low":
                high = counts[f"high:{column}"]
                facts[f"varies:{column}"] = None if value is None else int(value != high)
                facts[name] = _shown(value)
            elif kind == "high":
                facts[name] = _shown(value)
            elif kind in _COUNTS_AS_SHARES:
                count = int(str(value))
                facts[f"{kind}_share:{column}"] = count / rows
                if kind == "missing":
                    facts[f"values:{column}"] = rows - count
            else:
                facts[name] = int(str(value))
        return facts

    def _key_columns(self) -> dict[str, list[str]]:
        data = self._snapshot.data
        features = list(self._snapshot.task_columns.features)
        keys = {"row": self._schema.names(), "id": list(data.ids), "features": features}
        keys["group"] = [data.group] if data.group else []
        keys |= {f"repeated:{name}": [name] for name in self._opaque}
        return {name: columns for name, columns in keys.items() if columns}

    def _keyed(self, name: str, columns: list[str], batch: pl.DataFrame) -> pl.DataFrame:
        split = batch[SPLIT_COLUMN].alias("split")
        rows = batch["__key__"] if name == "row" else batch.select(columns).hash_rows()
        keyed = pl.DataFrame({"key": rows, "split": split})
        if name == "features":
            keyed = keyed.with_columns(label=batch[self._snapshot.data.label].hash())
        if name == "group" or name.startswith("repeated:"):
            keyed = keyed.filter(batch[columns[0]].is_not_null())
        return keyed


def _refuse_clashes(schema: pl.Schema, derived: Iterable[str]) -> None:
    clashes = sorted(set(derived) & set(schema.names()))
    if clashes:
        raise BadDataError(
            f"the column {clashes[0]!r} has the name of a statistic that is computed here",
            evidence=f"statistics of pictures, lists and texts are called {', '.join(clashes)}",
            action="rename these columns",
        )


def _repeat_facts(repeats: Mapping[str, Repeats]) -> dict[str, FactValue]:
    facts: dict[str, FactValue] = {
        f"duplicate_{name}_share": found.duplicate_share
        for name, found in repeats.items()
        if name in ("row", "id")
    }
    facts |= {
        name.replace(":", "_share:", 1): found.duplicate_share
        for name, found in repeats.items()
        if name.startswith("repeated:")
    }
    features = repeats["features"]
    facts["conflict_share"] = features.conflict_share
    facts["overlap_share"] = features.overlap_share
    facts["coarse_share"] = features.chance_share
    # What training rows repeat of each other, held-out rows repeat of them by chance as well.
    facts["overlap_beyond_chance"] = max(features.overlap_share - features.chance_share, 0.0)
    if "id" in repeats:
        facts["overlap_id_share"] = repeats["id"].overlap_share
    if "group" in repeats:
        facts["overlap_group_share"] = repeats["group"].overlap_share
    return facts


def _distinct_shares(
    sample: pl.DataFrame, features: Mapping[str, pl.DataType]
) -> dict[str, FactValue]:
    """Different values among the sampled values of each text feature."""
    shares: dict[str, FactValue] = {}
    for name in (name for name, dtype in features.items() if is_text(dtype)):
        values = sample[name].drop_nulls()
        if values.len() >= _MIN_DISTINCT_ROWS:
            shares[f"distinct_share:{name}"] = values.n_unique() / values.len()
    return shares


def _label_means(counts: pl.DataFrame) -> dict[BlockKey, float]:
    if "__label_sum__" not in counts.columns:
        return {}
    labelled = counts.filter(pl.col("__labels__") > 0)
    means = labelled["__label_sum__"] / labelled["__labels__"]
    return dict(zip(labelled["__block__"], means, strict=True))


def _num_blocks(snapshot: Snapshot) -> int:
    if not snapshot.data.time:
        return min(len(snapshot.files), MAX_FILES)
    if snapshot.time_min is None or snapshot.time_max is None:
        return 1
    length = timedelta(days=snapshot.data.block_days)
    return (snapshot.time_max - snapshot.time_min) // length + 1


def _shown(value: object) -> FactValue:
    if value is None or isinstance(value, int | float | str | bool):
        return value
    return str(value)
