"""Facts: measurements of a snapshot, put together from those of its partitions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import polars as pl

from perennial.clients.object_store import ObjectStore
from perennial.contracts.block import BlockFile, by_name
from perennial.contracts.snapshot import CLOCK_MARGIN, Snapshot
from perennial.contracts.validation import BlockSketch, FactValue
from perennial.data.dataset import SPLIT_COLUMN, within_window
from perennial.data.opaque_columns import statistic
from perennial.validate_data.columns import column_values
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.duplicates import repeats_of
from perennial.validate_data.labels import (
    LabelFacts,
    label_facts,
    mean_labels,
    opaque_label_kind,
    shares_of_second,
)
from perennial.validate_data.leakage import auc_error, joint_auc, leakage_aucs, persistence_auc
from perennial.validate_data.partition_facts import DISTINCT, KEYS, facts_measurement
from perennial.validate_data.samples import uniform_sample
from perennial.validate_data.sketches import BlockKey, Place, block_sketches
from perennial.validate_data.split_distances import SplitDistance, split_distances
from perennial.validate_data.state import FactsState
from perennial.validate_data.state_store import load_states

MAX_FILES = 1_000
"""Sketched without a time column; a sketch of 25 columns takes 30 kB."""
# Fewer values are not enough to estimate how many different ones a column has.
_MIN_DISTINCT_ROWS = 1_000
_CHANCE_ERRORS = 3.0  # standard errors that repeats across splits may differ from those within one
_COUNTS_AS_SHARES = ("missing", "outside", "unlisted", "unmatched", "unreadable", "blank")


@dataclass(frozen=True)
class Facts:
    """Measurements of a snapshot.

    Attributes:
        values: Fact → value; facts about a column are named `fact:column`.
        blocks: Sketches in time order; without a time column, of files by name.
        opaque: Columns of pictures, lists or free text, with their derived columns' names.
        splits: How far the features of validation and test are from training's.
        sample: Random rows of the splits, with the name of their split.
    """

    values: dict[str, FactValue]
    label: LabelFacts
    blocks: tuple[BlockSketch, ...]
    opaque: dict[str, list[str]]
    splits: tuple[SplitDistance, ...]
    sample: pl.DataFrame = field(compare=False)


def gather_facts(
    snapshot: Snapshot, section: ExpectationsSection, now: datetime, store: ObjectStore
) -> Facts:
    """Measure a snapshot: partitions that nobody measured before, and all of them together.

    Raises:
        BadDataError: a partition cannot be decoded, or the label cannot be counted.
    """
    # The last ones by name are often the newest.
    described = set(sorted(snapshot.paths, key=by_name)[-MAX_FILES:])

    def name_block(path: str, state: FactsState) -> FactsState:
        return state.with_block(path) if path in described else state.without_blocks()

    measurement = facts_measurement(snapshot, section)
    if snapshot.data.time:
        state = load_states(snapshot, measurement, store)
    else:
        # Of more files, a new one takes the place of another: a stored merge would not hold.
        keep = len(snapshot.files) <= MAX_FILES
        state = load_states(snapshot, measurement, store, name_block, keep_merged=keep)
    return summarise(state, snapshot, section, now)


def summarise(
    state: FactsState, snapshot: Snapshot, section: ExpectationsSection, now: datetime
) -> Facts:
    """Return the facts of a snapshot's merged state; what its newest time decides is decided here.

    Blocks of files are named by their paths below `data.uri`; rows later than `now`, with the
    clocks' margin, lie in the future.
    """
    data = snapshot.data
    opaque = opaque_label_kind(data, snapshot.columns[data.label])
    counts = _in_windows(state["labels"], snapshot)
    label = label_facts(counts, opaque or section.label_kind)
    sampled = _in_windows(state["sample"], snapshot, SPLIT_COLUMN, "__day__")
    sample = uniform_sample(sampled, SPLIT_COLUMN)
    own = (SPLIT_COLUMN, "__day__", "__key__", "__stratum__", "__time__", "__group__", data.label)
    features = {name: dtype for name, dtype in sample.schema.items() if name not in own}
    aucs = leakage_aucs(sample, features, data.label, label.kind)
    suspects = {name for name, auc in aucs.items() if auc > section.leakage_auc_fail}
    suspects -= set(section.leakage_allow)
    others = {name: dtype for name, dtype in features.items() if name not in suspects}
    keys = {
        name.removeprefix(KEYS): _in_windows(table, snapshot)
        for name, table in state.tables.items()
        if name.startswith(KEYS)
    }
    values: dict[str, FactValue] = {
        **_table_facts(snapshot, label),
        **_repeat_facts(keys, is_in_order=snapshot.split.resolved_method(data) == "time"),
        **_column_facts(state["columns"]),
        **{f"leakage_auc:{name}": round(auc, 4) for name, auc in aucs.items()},
    }
    if suspects:
        values["joint_auc"] = round(joint_auc(sample, others, data.label, label.kind), 4)
    if aucs:
        values["leakage_error"] = round(auc_error(sample[data.label], label.kind), 4)
        if data.time:
            values["persistence_auc"] = round(persistence_auc(sample, data.label, label.kind), 4)
    if data.time:
        last = (now + CLOCK_MARGIN).astimezone(UTC).date()
        later = state["days"].filter(pl.col("day") > last)
        values["future_rows"] = int(later["rows"].sum())
    blocks = block_sketches(
        state["blocks"],
        state["numbers"],
        state["texts"],
        features,
        label_means=_label_means(state, label),
        place_of=_places(snapshot),
    )
    if not data.time:
        blocks = tuple(sorted(blocks, key=lambda block: by_name(block.files[0].path)))
    splits = tuple(split_distances(sample, features, blocks))
    values |= {each.fact: each.distance for each in splits}
    return Facts(values, label, blocks, _derived_columns(state, snapshot, features), splits, sample)


def _in_windows(
    table: pl.DataFrame, snapshot: Snapshot, split: str = "split", day: str = "day"
) -> pl.DataFrame:
    """Take the split from entries on days outside of its window."""
    is_windowed = snapshot.split.train_days is not None or snapshot.split.test_days is not None
    if not is_windowed or day not in table.columns:
        return table
    used = within_window(pl.col(split).cast(pl.String), pl.col(day), snapshot)
    return table.with_columns(pl.when(used).then(split))


def _table_facts(snapshot: Snapshot, label: LabelFacts) -> dict[str, FactValue]:
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
        facts["look_alike_classes"] = len(label.look_alikes)
    return facts


def _column_facts(table: pl.DataFrame) -> dict[str, FactValue]:
    counts = column_values(table)
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


def _repeat_facts(keys: Mapping[str, pl.DataFrame], *, is_in_order: bool) -> dict[str, FactValue]:
    """Return the shares of repeated keys, by the kind of the keys.

    `is_in_order` tells that held-out rows come after training rows of the same period.
    """
    facts: dict[str, FactValue] = {}
    for kind, counts in keys.items():
        found = repeats_of(counts)
        if kind in ("row", "id"):
            facts[f"duplicate_{kind}_share"] = found.duplicate_share
        if kind in ("id", "group"):
            facts[f"overlap_{kind}_share"] = found.overlap_share
        if kind.startswith("repeated:"):
            facts[kind.replace(":", "_share:", 1)] = found.duplicate_share
        if kind == "features":
            facts["conflict_share"] = found.conflict_share
        if kind == "labelled_features":
            facts["overlap_share"] = found.overlap_share
            facts["coarse_share"] = found.chance_share
            # What training rows repeat of each other, held-out rows repeat by chance as well. Of
            # two Mondays in training each repeats one, and the Monday behind them two.
            usual = found.chance_share * (2 if is_in_order else 1)
            chance = usual + _CHANCE_ERRORS * found.chance_error
            facts["overlap_beyond_chance"] = max(found.overlap_share - chance, 0.0)
        if kind.startswith(DISTINCT) and counts["rows"].sum() >= _MIN_DISTINCT_ROWS:
            facts[kind.replace(":", "_share:", 1)] = 1.0 - found.duplicate_share
    return facts


def _label_means(state: FactsState, label: LabelFacts) -> dict[BlockKey, float]:
    """Mean label of each block: of numbers, and as the share of the second of two classes."""
    means = mean_labels(state["label_sums"])
    if label.kind != "classes" or label.num_values != 2:
        return means
    if not means:
        return shares_of_second(state["few_labels"])
    first, second = sorted(state["labels"]["value"].unique().cast(pl.Float64))
    if first == second:  # whole numbers above 2^53 that are one as floats: their shares are unknown
        return {}
    return {block: (mean - first) / (second - first) for block, mean in means.items()}


def _places(snapshot: Snapshot) -> Callable[[BlockKey], Place]:
    files = dict(zip(snapshot.paths, snapshot.files, strict=True))

    def place_of(key: BlockKey) -> Place:
        if isinstance(key, str):
            return Place(files=(BlockFile(path=key, sha256=files[key].sha256),))
        start = datetime(1970, 1, 1) + timedelta(days=key)
        return Place(start, start + timedelta(days=snapshot.data.block_days))

    return place_of


def _derived_columns(
    state: FactsState, snapshot: Snapshot, features: Iterable[str]
) -> dict[str, list[str]]:
    """The derived columns of each opaque column."""
    prefix = "unreadable:"
    measures = state["columns"].columns
    opaque = [name.removeprefix(prefix) for name in measures if name.startswith(prefix)]
    derived = [name for name in features if name not in snapshot.columns]
    return {
        name: [each for each in derived if each.startswith(statistic(name, ""))] for name in opaque
    }


def _shown(value: object) -> FactValue:
    return value if value is None or isinstance(value, int | float | str) else str(value)
