"""Columns: how well one predicts the label, and whether `encode` reads it."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from scipy.stats import rankdata

from perennial.check_skeleton.subject import Codes, Flags, Floats, Subject, find_differences, once
from perennial.engine.evaluation.scoring import take_one_each
from perennial.engine.task import LABEL, inputs_of

ROWS = 4096
BINS = 16
FEWEST_IN_BIN = 16
MOST_TAGS = 64
MOST_CLASSES = 10
# Of one row, and values of one label: more are amounts.
MOST_LABELS, FEW_VALUES = 8, 10
MOST_GAPS = 0.5  # of the numbers at a place of lists
DRAWS = 40
NONE = -1

# Rows compared on each side of a border, and how far they may reach: tails of clusters reach
# over more than one deviation of their class, slices of a range that was cut over a tenth.
NEAREST_SHARE = 0.05
LONGEST_REACH = 0.35
FEWEST_IN_CLASS = 20
MOST_INTERVALS = 20
READ_ROWS = 64


@dataclass(frozen=True)
class Signal:
    """The strength with which groups of rows predict the label."""

    share: float  # share of the label's variance explained, minus what random groups would explain
    errors: float  # the same difference in standard deviations of random groups


@dataclass(frozen=True)
class Labels:
    """One label of each row of the training sample, or its tags."""

    raw: pl.Series  # as the data has them
    codes: Floats  # as numbers [N]; tags, or shares of classes, [N, C]
    are_numbers: bool  # amounts, not classes

    @property
    def are_classes(self) -> bool:
        """Whether each row has one class; shares of several, as of mixed labels, are none."""
        return not self.are_numbers and self.codes.ndim == 1

    def tabulate(self, most_classes: int = MOST_CLASSES) -> Floats:
        """Return columns [N, C]: tags, one of ranks, or of the common classes."""
        if self.codes.ndim > 1:
            return self.codes
        if self.are_numbers:
            return np.asarray(rankdata(self.codes)[:, None] / len(self.codes))
        codes, counts = np.unique(self.codes, return_counts=True)
        common = codes[np.argsort(-counts)[:most_classes]]
        return np.asarray(self.codes[:, None] == common, dtype=np.float64)


@once
def read_labels(subject: Subject) -> list[Labels]:
    """Return the labels of the training sample, each of one value, or tags.

    A task of statistics may encode weights beside its labels, so that they are taken as the data
    has them: single values, or lists of a few numbers, each a label of its own. Empty where there
    are none, as for tokens. What is missing from a list, as an answer that was not asked for, has
    the median of the others: it tells nothing.
    """
    raw = subject.train_rows[subject.task.columns.label]
    if subject.task.kind != "statistic" or has_tags(subject):
        codes: Floats = take_one_each(subject.train[LABEL]).double().numpy()
        is_plain_label = codes.ndim == 1 or (codes.ndim == 2 and codes.shape[1] <= MOST_TAGS)
        return [Labels(raw, codes, subject.task.kind == "regression")] if is_plain_label else []
    lists = _fill_gaps(read_lists(raw, with_gaps=True))
    if lists is None and is_plain(raw) and not raw.null_count():
        numbers = raw.to_physical() if is_ordered(raw) else raw.cast(pl.String).rank("dense")
        lists = numbers.cast(pl.Float64).to_numpy()[:, None]
    if lists is None or lists.shape[1] > MOST_LABELS or not np.isfinite(lists).all():
        return []
    are_amounts = is_ordered(raw) or raw.dtype.is_nested()
    counts = [len(np.unique(each)) for each in lists.T]
    return [
        Labels(pl.Series(raw.name, each), each, are_amounts and count > FEW_VALUES)
        for each, count in zip(lists.T, counts, strict=True)
        if count > 1
    ]


def _fill_gaps(lists: Floats | None) -> Floats | None:
    """Return lists [N, L] without gaps; None where most of a place is missing."""
    if lists is None or (is_gap := np.isnan(lists)).mean(axis=0).max(initial=0.0) > MOST_GAPS:
        return None
    return np.where(is_gap, np.nanmedian(lists, axis=0), lists) if is_gap.any() else lists


def probe_rows(subject: Subject) -> tuple[pl.DataFrame, Floats]:
    """Return rows from the whole training sample, and their labels as columns of numbers."""
    taken = probed_places(subject)
    labels = [each.tabulate()[taken] for each in read_labels(subject)]
    return subject.train_rows[taken], np.concatenate(labels, axis=1)


def probed_places(subject: Subject) -> slice:
    """Return which rows of the training sample are probed, evenly from all of it."""
    every = max(subject.num_rows() // ROWS, 1)
    return slice(0, every * ROWS, every)


def has_tags(subject: Subject) -> bool:
    """Whether labels are tags of which several may hold: columns of zeros and ones, [B, C]."""
    labels = subject.train[LABEL]
    if labels.ndim != 2 or not 2 <= labels.shape[1] <= MOST_TAGS:
        return False
    is_binary = bool(((labels == 0) | (labels == 1)).all())
    return is_binary and bool((labels.double().var(dim=0) > 0).all())


def group_values(column: pl.Series, most: int = BINS) -> Codes:
    """Return a code for each value, or for each bin of numbers; missing values have their own."""
    bins_used = max(min(most, len(column) // FEWEST_IN_BIN), BINS)
    if is_ordered(column):
        numbers = column.to_physical().cast(pl.Float64).fill_nan(None)
        if numbers.n_unique() > 2 * bins_used:
            present = numbers.drop_nulls().to_numpy()
            edges = np.unique(np.quantile(present, np.linspace(0, 1, bins_used + 1)[1:-1]))
            bins = np.searchsorted(edges, numbers.fill_null(0.0).to_numpy(), side="right")
            return np.where(numbers.is_null().to_numpy(), NONE, bins)
        column = numbers
    ranks = column.cast(pl.String, strict=False).rank("dense").cast(pl.Int64)
    return ranks.fill_null(NONE).to_numpy()


def measure_signal(groups: Codes, labels: Floats, given: Codes | None = None) -> Signal:
    """Measure how far the groups' mean labels lie apart, compared with random groups.

    Args:
        groups: The group of each row.
        labels: The labels, [N, C].
        given: Codes of the rows; groups are compared only among rows with equal codes.
    """
    given = np.zeros(len(groups), dtype=np.int64) if given is None else given
    random, (_, codes) = np.random.default_rng(0), np.unique(groups, return_inverse=True)
    own = np.argsort(given, kind="stable")
    centred = labels - _average_by_group(given, labels)[given]

    def sum_between_groups(codes: Codes) -> float:
        return float((_average_by_group(codes, centred)[codes] ** 2).sum())

    found, drawn = sum_between_groups(codes), []
    for _ in range(DRAWS):
        exchanged = np.empty_like(codes)
        # Permute the groups among rows of the same `given` code.
        exchanged[own] = codes[np.lexsort((random.random(len(codes)), given))]
        drawn.append(sum_between_groups(exchanged))
    variance = float(((labels - labels.mean(axis=0)) ** 2).sum())
    error = float(np.std(drawn, ddof=1))
    lead = found - float(np.mean(drawn))
    return Signal(lead / max(variance, 1e-12), lead / error if error > 1e-9 * variance else 0.0)


def _average_by_group(codes: Codes, labels: Floats) -> Floats:
    counts = np.maximum(np.bincount(codes), 1)
    means = [np.bincount(codes, weights=each) / counts for each in labels.T]
    return np.asarray(np.stack(means, axis=1))


def list_rows_by_value(column: pl.Series, fewest: int) -> list[tuple[object, Codes]]:
    """Return the rows of each value that has so many, in order; values in that of their texts."""
    frame = pl.DataFrame({"value": column}).with_row_index("row")
    found = [
        (value, group["row"].to_numpy().astype(np.int64))
        for (value,), group in frame.group_by("value", maintain_order=True)
        if len(group) >= fewest
    ]
    return sorted(found, key=lambda pair: str(pair[0]))


def is_ordered(column: pl.Series) -> bool:
    """Whether a column holds amounts or times."""
    return column.dtype.is_numeric() or column.dtype.is_temporal()


def is_plain(column: pl.Series) -> bool:
    """Whether a column holds single values, not pictures, lists, structs or free text."""
    kind = column.dtype
    return not (kind.is_nested() or kind in (pl.Binary, pl.Object, pl.Null) or is_free_text(column))


def is_name(column: pl.Series) -> bool:
    """Whether a column's single values may name things: no fractions, days or times."""
    return is_plain(column) and not (column.dtype.is_float() or column.dtype.is_temporal())


def is_free_text(column: pl.Series) -> bool:
    """Whether a column holds texts of several words."""
    if column.dtype != pl.String:
        return False
    return float(column.str.count_matches(r"\s+").mean() or 0.0) >= 3  # type: ignore[arg-type]


def read_lists(column: pl.Series, *, with_gaps: bool = False) -> Floats | None:
    """Return lists of one length as rows of numbers, [N, L]; None for anything else.

    Missing numbers become NaN `with_gaps`; without, lists that have any are something else.
    """
    kind = column.dtype
    if not isinstance(kind, pl.List | pl.Array) or column.null_count() or not len(column):
        return None
    lengths = column.list.len() if isinstance(kind, pl.List) else column.arr.len()
    inner = column.explode()
    has_gaps = bool(inner.null_count()) and not with_gaps
    if lengths.n_unique() > 1 or not inner.dtype.is_numeric() or has_gaps:
        return None
    return inner.cast(pl.Float64).fill_null(np.nan).to_numpy().reshape(len(column), -1)


def find_cut_columns(values: Floats, codes: Floats) -> Flags:
    """Return for which columns [N, D] classes are adjacent intervals, without a gap."""
    found = np.zeros(values.shape[1], dtype=np.bool_)
    classes, counts = np.unique(codes, return_counts=True)
    if not 2 <= len(classes) <= MOST_INTERVALS or counts.min() < FEWEST_IN_CLASS:
        return found
    low = np.stack([values[codes == each].min(axis=0) for each in classes])
    high = np.stack([values[codes == each].max(axis=0) for each in classes])
    order = low.argsort(axis=0)
    low, high = (np.take_along_axis(each, order, axis=0) for each in (low, high))
    apart = (high[:-1] < low[1:]).all(axis=0)
    for column in np.flatnonzero(apart):
        found[column] = _are_adjacent(values[:, column], codes)
    return found


def _are_adjacent(values: Floats, codes: Floats) -> bool:
    parts = sorted((np.sort(values[codes == each]) for each in np.unique(codes)), key=min)
    steps = np.diff(np.unique(values))
    step = float(np.median(steps)) if len(steps) > 1 else 0.0
    for below, above in pairwise(parts):
        last = below[-1 - max(int(NEAREST_SHARE * len(below)), 1)]
        first = above[max(int(NEAREST_SHARE * len(above)), 1)]
        spread = min(below.std(), above.std())
        if not first - last - step <= 2 * LONGEST_REACH * spread:
            return False
    return True


def spread_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a few rows from the whole sample: neighbours in time are too similar."""
    return rows.gather_every(max(rows.height // READ_ROWS, 1)).head(READ_ROWS)


def repeat_row(subject: Subject, values: pl.Series) -> pl.DataFrame:
    """Return one row of the training sample once with each value in the column of that name."""
    place = int(subject.train_rows[values.name].is_not_null().arg_max() or 0)
    return subject.train_rows[[place] * len(values)].with_columns(values)


def is_input_changed(subject: Subject, rows: pl.DataFrame, changed: pl.DataFrame) -> bool:
    """Whether `encode` returns other inputs for changed rows, or rejects them."""
    before = inputs_of(subject.task.encode(rows))
    try:
        return bool(find_differences(before, inputs_of(subject.task.encode(changed))))
    except Exception:  # only a column that is read can be missed or rejected
        return True


def is_read(subject: Subject, name: str) -> bool:
    """Whether the inputs of some rows change with the values of a column."""
    rows = spread_rows(subject.train_rows)
    return is_input_changed(subject, rows, _with_others(subject, rows, name))


def find_tensors_of(subject: Subject, name: str) -> list[str]:
    """Return the tensors, label and weight too, that change with a column; all on rejection."""
    rows = spread_rows(subject.train_rows)
    # Neighbours that are scored together may need each other.
    rows = rows.head(max(rows.height - rows.height % subject.task.scored_together, 1))
    before = subject.task.encode(rows)
    try:
        after = subject.task.encode(_with_others(subject, rows, name))
    except Exception:  # only a column that is read can be rejected
        return list(before)
    return find_differences(before, after)


def find_unread_features(subject: Subject) -> list[str]:
    """Return the features that the contract names, that vary, and that no tensor changes with."""
    named = subject.data.features if subject.data else ()
    return [
        name
        for name in named
        if name != subject.task.columns.label
        and subject.train_rows[name].n_unique() > 1
        and not find_tensors_of(subject, name)
    ]


def is_position_read(subject: Subject, name: str, position: int) -> bool:
    """Whether the inputs change with one position of a column's lists; below 0, from the end."""
    rows = spread_rows(subject.train_rows)
    lists = [list(each) for each in rows[name].to_list()]
    held = _exchange(pl.Series([each[position] for each in lists]))
    for each, value in zip(lists, held, strict=True):
        each[position] = value
    changed = rows.with_columns(pl.Series(name, lists, dtype=rows[name].dtype))
    return is_input_changed(subject, rows, changed)


def _with_others(subject: Subject, rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the rows with other values of a column; a rare one may be in none of the rows."""
    values, sample = rows[name], subject.train_rows[name]
    if values.dtype.is_nested() or values.dtype in (pl.Binary, pl.Object):
        return rows.with_columns(_exchange(values))
    different = sample.unique().sort().to_frame()
    numbered = different.with_row_index("place")
    places = values.to_frame().join(
        numbered, on=name, how="left", nulls_equal=True, maintain_order="left"
    )["place"]
    others = (places + different.height // 2) % different.height
    return rows.with_columns(different.to_series().gather(others))


def _exchange(values: pl.Series) -> pl.Series:
    """Return the values in other rows, shifted by half the sorted order."""
    if values.dtype.is_nested():  # lists have no order
        return pl.concat([values[len(values) // 2 :], values[: len(values) // 2]])
    order = values.arg_sort().to_numpy()
    places = np.empty_like(order)
    places[order] = np.roll(order, len(order) // 2)
    return values.gather(pl.Series(places))
