"""Check `telling_columns`: columns and positions that predict the label alone.

Consequences of the label: a legitimate predictor of an amount still depends on the other features,
given the amount. A noisy copy of the outcome depends on the outcome alone, while the other
features still improve its prediction of the outcome.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl
import polars.selectors as cs
from sklearn.linear_model import Ridge
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from perennial.check_skeleton.checks.data.leaks.broken_pairs import judge_broken_pairs
from perennial.check_skeleton.checks.data.leaks.charged_amounts import has_values_of_one_class
from perennial.check_skeleton.checks.data.leaks.completed_texts import describe_completed_text
from perennial.check_skeleton.checks.data.leaks.filled_ends import find_filled_end
from perennial.check_skeleton.checks.data.leaks.label_names import (
    describe_label_mark,
    describe_named_label,
)
from perennial.check_skeleton.checks.data.leaks.latest_labels import describe_latest_label
from perennial.check_skeleton.checks.data.leaks.list_ends import ListEnd, take_list_ends
from perennial.check_skeleton.checks.data.leaks.revealing_positions import (
    describe_label_position,
    describe_stamp,
)
from perennial.check_skeleton.checks.data.leaks.running_labels import find_running_label
from perennial.check_skeleton.checks.data.leaks.scaled_copies import is_scaled_copy
from perennial.check_skeleton.checks.data.leaks.self_counts import describe_self_count
from perennial.check_skeleton.checks.data.leaks.whole_table_means import judge_whole_table_mean
from perennial.check_skeleton.checks.data.signals import (
    NONE,
    find_cut_columns,
    group_values,
    is_ordered,
    is_plain,
    is_read,
    measure_signal,
    probed_places,
    read_labels,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Floats, Subject
from perennial.contracts.errors import join_names
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import inputs_of

TELLING_SHARE = 0.95
# Missing values of 27 columns that had nothing to do with the outcome explain at most 0.09.
ABSENT_SHARE = 0.4
FINE_BINS = 64
IN_ORDER = 0.99999
FEWEST_VALUES = 20
# Rows with a value, all of one class, and how likely that may be by chance.
FEWEST_KNOWN, MOST_CHANCE = 64, 1e-9
# Fewer rows may be in an order, or agree, by chance.
FEWEST_ROWS = 64
ONE_VALUE = "one value in the rows of a class, and others in other rows"
# At most this many values, each with one label in every row, define it; names may be knowledge.
MOST_DEFINING = 20
# Knowledge may decide some rows of a class; what is written afterwards is there for most of them.
MOST_OF_CLASS = 0.5
HARDLY_OTHERS = 0.99
# Row numbers are dense: a sample of them spans little more than the rows of the split.
DENSE = 3.0
NUMBERED_SHARE = 0.8
WITH_TIME = 0.99
MOST_VALUES = 20
FOLDS = 5
RIDGE = 3.0
TELLING = 0.95
# What the other columns explain together; above it, many columns predict the amount.
MOST_OF_OTHERS = 0.75
# Standard errors: a clear correlation, and what chance makes of none.
CLEAR, NOTHING, NOTHING_OF_MANY = 3.0, 1.2, 2.0
FEWEST_COMPARED = 200

# Rows of a few different shares; more could be any amount.
FEWEST_OF_SHARE = 20
SHARE_ERRORS = 3.0
MOST_LABELS = 64


@dataclass(frozen=True)
class Rows:
    """Rows of the training sample, with their labels."""

    subject: Subject  # the subject of the check
    frame: pl.DataFrame  # rows from the whole training sample
    labels: Floats  # their labels as columns of numbers
    raw: pl.Series  # their labels as the data has them
    codes: Floats  # their labels as numbers
    names: list[str]  # features that hold single values
    has_classes: bool  # whether each row has one class; shares of several, as mixed labels, not
    ends: Mapping[str, ListEnd] = field(default_factory=dict)  # of lists, if columns are such

    @cached_property
    def explained(self) -> dict[str, float]:
        """The share of the labels' variance that each of the features explains."""
        return {
            name: measure_signal(group_values(self.frame[name], FINE_BINS), self.labels).share
            for name in self.names
        }


@check(
    "telling_columns",
    expects=f"no feature that explains {TELLING_SHARE:.0%} of the label's variance alone, no "
    "row numbers among the features, and no position of a window that holds the label",
    source="guides: the target, or a consequence of it, used as an input; is it known when the "
    "prediction is made?",
    needs_losses=False,
)
def check_telling_columns(subject: Subject, judge: Judge) -> CheckResult:
    """Check that no raw column and no fixed position of the inputs reveals the label."""
    columns = subject.task.columns
    if completed := describe_completed_text(subject):
        return judge.failed(
            completed,
            hint="the answer stands in what it is looked up by: was the text saved after the "
            "answer was chosen? Take it as of the time of the question",
        )
    if columns.label in columns.features or subject.task.reconstructs_inputs:
        return judge.skipped("the label is a feature by design")
    position = _judge_inputs(judge, subject)
    probed = _probe_labels(subject)
    if not probed:
        return position or judge.skipped("there is no single label")
    shares = ((share, name) for rows in probed for name, share in rows.explained.items())
    best = max(shares, default=(0.0, ""))
    first = (
        judge_rows(judge, rows)
        for rows in probed
        for judge_rows in (_judge_copies, _judge_definition)
    )
    if found := next(filter(None, first), None) or position:
        return found
    ends = [_take_list_ends(rows) for rows in probed] if len(probed) == 1 else []
    return (
        next(filter(None, (_judge_list_ends(judge, rows) for rows in ends)), None)
        or next(filter(None, (_judge_shares(judge, rows) for rows in probed)), None)
        or next(filter(None, (_judge_overwritten(judge, rows) for rows in ends)), None)
        or _judge_self_count(judge, subject)
        or judge_broken_pairs(judge, subject)
        or judge.passed(
            f"the best single predictor is {best[1]}: {best[0]:.1%} of the label's variance"
            if best[1]
            else "no feature holds single values"
        )
    )


def _judge_inputs(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge places of lists, texts and pictures that hold the label; None if none does."""
    if place := describe_label_position(subject):
        return judge.failed(
            f"{place}, in every row",
            hint="the window contains the label: it ends one step too late, the shift has the "
            "wrong sign, or a lag is 0. End it before the label, or shift the label further",
        )
    if stamp := describe_stamp(subject):
        return judge.failed(
            stamp,
            hint="a frame, a stamp or a mark: did the pictures of this class come from another "
            "source? Cut it off, or collect all classes alike",
        )
    if named := describe_named_label(subject) or describe_label_mark(subject):
        return judge.failed(
            named,
            hint="the answer is written in what it is guessed from: mask it, as the name of a "
            "function in its own body, or a keyword that the label was made of",
        )
    if filled := find_filled_end(subject):
        return (judge.failed if filled.is_only_at_end else judge.warned)(
            str(filled),
            hint="gaps were interpolated before windows were cut: the line ends in a reading that "
            "is not known yet. Fill each window from its own past. Correct where the series rises "
            "and falls in straight lines",
        )
    return None


def _probe_labels(subject: Subject) -> list[Rows]:
    """Return rows from the whole training sample, once with each label of a row."""
    taken = probed_places(subject)
    # NumPy, and files that it wrote, have no other number for a missing one.
    frame = subject.train_rows[taken].with_columns(cs.float().fill_nan(None))
    plain = [name for name in subject.task.columns.features if is_plain(frame[name])]
    return [
        Rows(
            subject,
            frame,
            each.tabulate()[taken],
            each.raw[taken],
            each.codes[taken],
            plain,
            has_classes=each.are_classes,
        )
        for each in read_labels(subject)
    ]


def _judge_copies(judge: Judge, rows: Rows) -> CheckResult | None:
    """Judge columns that are the label under another name."""
    same = [
        name
        for name in rows.names
        if _is_label(rows.frame[name], rows.raw, rows.labels)
        or is_scaled_copy(rows.frame[name], rows.raw)
    ]
    if not same:
        return None
    return (judge.failed if _is_relevant(rows, same) else judge.warned)(
        f"the label of every row is determined by {join_names(same)}",
        hint="it is the label under another name or in another unit: remove it from the features",
    )


def _judge_definition(judge: Judge, rows: Rows) -> CheckResult | None:
    """Fail on columns that determine every class, or that only the label explains."""
    is_class, found = rows.has_classes, rows.explained
    strong = (name for name, share in found.items() if share > NUMBERED_SHARE)
    telling = [name for name in strong if not _is_following_time(rows, name)]
    telling.sort(key=lambda name: -found[name])
    if counted := [n for n in telling if is_class and _is_numbering(rows, n)]:
        if _is_relevant(rows, counted):
            return judge.failed(
                f"{found[counted[0]]:.1%} of the label's variance is explained by "
                f"{join_names(counted)} alone, and each row has a different number",
                hint="a row's number is its position, and the rows were sorted by the label: list "
                "the column under data.ids, and shuffle the export",
            )
        return None
    if is_class and (found_class := _judge_classes(judge, rows, telling)):
        return found_class
    if counted_labels := _judge_sums_of_labels(judge, rows):
        return counted_labels
    if not is_class:
        late = [name for name in telling if _is_consequence_of_label(rows, name)]
        if late and _is_relevant(rows, late):
            return judge.failed(
                f"{found[late[0]]:.1%} of the label's variance is explained by {join_names(late)} "
                "alone; the label explains it, and no other column does",
                hint="a noisy copy of the outcome, or a consequence of it: columns known before "
                "the outcome depend on the other features, too. Remove it from the features",
            )
    return None


def _judge_sums_of_labels(judge: Judge, rows: Rows) -> CheckResult | None:
    """Fail on columns that count the row's own label, among its group's or those before it."""
    if mean := _find_group_mean(rows):
        return judge.failed(
            f"{mean} is the label's mean in groups of a few rows: wherever it is least or largest, "
            "all labels are equal, and between these it is their share",
            hint="the mean counts the row's own label, which is unknown when the prediction is "
            "made: leave the row out, use earlier rows only, or learn means in folds",
        )
    if whole := judge_whole_table_mean(judge, rows.subject):
        return whole
    if latest := describe_latest_label(rows.subject):
        return judge.failed(
            latest,
            hint="it was joined by the name alone, so that earlier rows know what came later: join "
            "each row with the newest value before its own time",
        )
    running = find_running_label(rows.subject)
    if not running or not _is_relevant(rows, [running]):
        return None
    return judge.failed(
        f"{running} is a sum of labels around the row in time, its own among them",
        hint="its window ends with the row or later, and these labels are unknown when the "
        "prediction is made: shift the labels by a row before the sum or the mean is taken",
    )


def _judge_classes(judge: Judge, rows: Rows, telling: Sequence[str]) -> CheckResult | None:
    """Fail on columns, of those that are telling, that determine every class, or one of them."""
    findings = {
        "the class of every row is determined by": [n for n in telling if _is_defining(rows, n)],
        "values that only one class has, between those of the others:": [
            n for n in rows.names if has_values_of_one_class(rows.frame[n], rows.codes)
        ],
        "empty in one class only:": [n for n in rows.names if _is_absent(rows, n)],
        f"{ONE_VALUE}:": [
            n for n in rows.names if _is_written_for_one_class(rows, n, is_commoner=True)
        ],
    }
    for how, names in findings.items():
        if names and _is_relevant(rows, names):
            return judge.failed(
                f"{how} {join_names(names)}",
                hint="the label was made from it, or it is written after the outcome is known: "
                "remove it from the features",
            )
    return None


def _judge_list_ends(judge: Judge, rows: Rows) -> CheckResult | None:
    """Fail on first and last elements of lists that determine a class."""
    telling = [name for name, share in rows.explained.items() if share > NUMBERED_SHARE]
    return _judge_classes(judge, rows, telling) if rows.has_classes else None


def _take_list_ends(rows: Rows) -> Rows:
    """Return the first and the last elements of features that hold lists, as columns."""
    found = take_list_ends(rows.frame, rows.subject.task.columns.features)
    named = {str(end): end for end in found}
    frame = pl.DataFrame({str(end): values for end, values in found.items()})
    return replace(rows, frame=frame, names=list(named), ends=named)


def _judge_shares(judge: Judge, rows: Rows) -> CheckResult | None:
    frame, found = rows.frame, rows.explained
    empty = {
        name: measure_signal(np.where(frame[name].is_null().to_numpy(), NONE, 0), rows.labels).share
        for name in rows.names
        if frame[name].null_count()
    }
    absent = [name for name, share in empty.items() if share > ABSENT_SHARE]
    is_other = len(rows.subject.task.columns.features) > 1
    if absent and rows.has_classes and is_other and is_read(rows.subject, absent[0]):
        return judge.failed(
            f"{empty[absent[0]]:.1%} of the label's variance is explained by missing values of "
            f"{join_names(absent)} alone",
            hint="is it missing because of the outcome, as accounts that were closed, or known "
            "because of it, as notes of those who labelled? Remove it from the features, or take "
            "it as of the time of the prediction",
        )
    if telling := [name for name, share in {**found, **empty}.items() if share > TELLING_SHARE]:
        share, absence = found[telling[0]], empty.get(telling[0], 0.0)
        return judge.warned(
            f"{max(share, absence):.1%} of the label's variance is explained by "
            f"{'missing values of ' if absence > TELLING_SHARE else ''}{join_names(telling)} "
            "alone",
            hint="is it known when the prediction is made? If it is written after the outcome is "
            "known, remove it from the features, or declare data.available_at",
        )
    is_class = rows.has_classes
    if known := [name for name in rows.names if is_class and _is_known_in_one_class(rows, name)]:
        return judge.warned(
            f"{join_names(known)} has values in rows of one class only, in "
            f"{1 - frame[known[0]].null_count() / len(frame):.0%} of the rows",
            hint="is it written after the outcome is known, as for those who left? Then remove it "
            "from the features, or declare data.available_at",
        )
    if overwritten := _judge_overwritten(judge, rows):
        return overwritten
    if counting := [name for name in rows.names if _is_counting(frame[name])]:
        return judge.warned(
            f"row numbers among the features: {join_names(counting)}",
            hint="a row's number is its position, and labels may be sorted: list the column under "
            "data.ids",
        )
    return None


def _judge_overwritten(judge: Judge, rows: Rows) -> CheckResult | None:
    """Warn of numbers that the rows of a class have alike, and others do not."""
    written = [n for n in rows.names if rows.has_classes and _is_written_for_one_class(rows, n)]
    if not written or not _is_relevant(rows, written):
        return None
    return judge.warned(
        f"{ONE_VALUE}: {join_names(written)}",
        hint="does the outcome overwrite it, as days that are set to zero? Then remove it from "
        "the features, or declare data.available_at. Correct where the class has no such "
        "amount, as flats no garden and electric cars no displacement",
    )


def _judge_self_count(judge: Judge, subject: Subject) -> CheckResult | None:
    """Warn of counts of labels that include the row's own; a choice among them is healthy."""
    if not (found := describe_self_count(subject)):
        return None
    return judge.warned(
        found,
        hint="do they count the row's own label, as with a self-loop or a group that contains the "
        "row? Leave the row out. Correct where the label is a choice among what is counted",
    )


def _is_relevant(rows: Rows, names: Sequence[str]) -> bool:
    """Whether `encode` reads one of the columns, and other features exist."""
    if len(rows.names) < 2:
        return False
    ends = rows.ends
    return any(
        ends[name].is_read(rows.subject) if ends else is_read(rows.subject, name) for name in names
    )


def _is_label(column: pl.Series, label: pl.Series, labels: Floats) -> bool:
    """Whether values and labels correspond one to one in every row."""
    if column.null_count() or (not column.dtype.is_numeric() and labels.shape[1] == 1):
        return False
    pairs = pl.DataFrame({"value": column, "label": label}).unique()
    is_paired = pairs["value"].n_unique() == pairs.height == pairs["label"].n_unique()
    if labels.shape[1] == 1:  # numbers: all different in any column, so their order must agree
        order = np.corrcoef(column.rank().to_numpy(), labels[:, 0])[0, 1]
        return is_paired and pairs.height > FEWEST_VALUES and abs(order) > IN_ORDER
    return is_paired and pairs.height > 1


def _is_defining(rows: Rows, name: str) -> bool:
    """Whether values, or thresholds among many rows, determine every class."""
    column = rows.frame[name]
    if column.null_count() or column.len() < FEWEST_ROWS:
        return False
    if is_ordered(column):
        values = column.to_physical().cast(pl.Float64).to_numpy()
        if find_cut_columns(values[:, None], rows.codes).any():
            return True
    groups = pl.DataFrame({"value": column, "code": rows.codes})
    decided = groups.group_by("value").agg(pl.col("code").n_unique(), pl.len())
    return (
        decided.height <= MOST_DEFINING
        and bool((decided["code"] == 1).all())
        and column.len() >= FEWEST_ROWS * decided.height
    )


def _find_group_mean(rows: Rows) -> str:
    """Return a column, raw or encoded, that is the mean label of small groups; empty if none."""
    if not rows.has_classes or len(np.unique(rows.codes)) > 2:
        return ""
    every = max(rows.subject.num_rows() // len(rows.frame), 1)
    for name in rows.names:
        column = rows.frame[name]
        if column.dtype.is_float() and not column.null_count():
            values = column.to_numpy()
            if _is_group_mean(values, rows.codes) and is_read(rows.subject, name):
                return name
    for name, tensor in inputs_of(rows.subject.train).items():
        if tensor.is_floating_point() and tensor.ndim == 2 and tensor.shape[1] <= MOST_LABELS:
            numbers = tensor[::every][: len(rows.frame)].double().numpy()
            for place, values in enumerate(numbers.T):
                if _is_group_mean(values, rows.codes):
                    return f"{name}[{place}]"
    return ""


def _is_group_mean(values: Floats, codes: Floats) -> bool:
    """Whether numbers are, up to their scale, shares of the label that count the row's own."""
    low, high = values.min(), values.max()
    if not np.isfinite(low) or not np.isfinite(high) or low == high:
        return False
    shares, is_high = (values - low) / (high - low), codes == codes.max()
    none, all_, inner = shares == 0, shares == 1, (shares > 0) & (shares < 1)
    if min(none.sum(), all_.sum(), inner.sum()) < FEWEST_OF_SHARE:
        return False
    if is_high[none].any() or not is_high[all_].all():
        return False
    different, places = np.unique(shares[inner], return_inverse=True)
    counts, means = np.bincount(places), np.bincount(places, weights=is_high[inner])
    is_many = counts >= FEWEST_OF_SHARE
    error = np.sqrt(different * (1 - different) / counts)
    fits = np.abs(means / counts - different) <= SHARE_ERRORS * error
    return bool(is_many.any() and fits[is_many].all())


def _is_absent(rows: Rows, name: str) -> bool:
    """Whether the column is empty in all rows of one of two classes, and in no others."""
    missing = rows.frame[name].is_null().to_numpy()
    least = min(missing.sum(), (~missing).sum())
    classes, others = (set(rows.codes[where].tolist()) for where in (missing, ~missing))
    return bool(least >= FEWEST_VALUES and len(classes) == len(others) == 1 and classes != others)


def _is_known_in_one_class(rows: Rows, name: str) -> bool:
    """Whether all rows with a value, many of them, are of one class, and others exist."""
    is_known = rows.frame[name].is_not_null().to_numpy()
    if not FEWEST_KNOWN <= is_known.sum() < len(is_known):
        return False
    classes = np.unique(rows.codes[is_known])
    return bool(
        len(classes) == 1 and (rows.codes == classes[0]).mean() ** is_known.sum() < MOST_CHANCE
    )


def _is_written_for_one_class(rows: Rows, name: str, *, is_commoner: bool = False) -> bool:
    """Whether all rows of a class have one value, and most others another one.

    At the end of lists, most rows of a class and hardly another, as of pages after a purchase. Of
    the commoner one of two classes, or of any class, if other rows have many different numbers:
    a choice among a few values may rule out a rare class. A number that varies by nature varies in
    each class, unless the outcome has overwritten it, or the class has no such amount.
    """
    column, codes = rows.frame[name], rows.codes
    classes, counts = np.unique(codes, return_counts=True)
    if is_commoner:
        is_asked = (counts > len(codes) / 2) & (len(classes) == 2)
    else:
        is_asked = np.full(len(classes), is_ordered(column) and not column.null_count())
    for code, count in zip(classes[is_asked], counts[is_asked], strict=True):
        own, others = column.filter(codes == code), column.filter(codes != code)
        usual = own.mode()[0]
        share = float(own.eq_missing(usual).mean())
        written = others.ne_missing(usual).to_numpy()
        is_owned = share == 1 and written.mean() >= MOST_OF_CLASS
        if rows.ends and not is_commoner:
            is_owned |= share >= MOST_OF_CLASS and written.mean() >= HARDLY_OTHERS
        if (
            is_owned
            and min(count, written.sum()) >= FEWEST_ROWS
            and (is_commoner or others.n_unique() > FEWEST_VALUES)
        ):
            return True
    return False


def _is_following_time(rows: Rows, name: str) -> bool:
    """Whether a column rises with a stream's time, over which labels may change permanently."""
    time = rows.subject.time
    column = rows.frame[name]
    if time is None or time not in rows.frame.columns or not is_ordered(column):
        return False
    first, second = (each.rank().fill_null(0).to_numpy() for each in (column, rows.frame[time]))
    return bool(np.corrcoef(first, second)[0, 1] > WITH_TIME)


def _is_numbering(rows: Rows, name: str) -> bool:
    """Whether integers are all different and dense, as row numbers are."""
    column = rows.frame[name]
    if not column.dtype.is_integer() or column.null_count() or column.len() < FEWEST_ROWS:
        return False
    reach = int(column.max()) - int(column.min())  # type: ignore[arg-type]
    return column.n_unique() == column.len() and reach <= DENSE * rows.subject.train_split_rows


def _is_counting(column: pl.Series) -> bool:
    """Whether integers, all different, rise evenly with the rows."""
    if not column.dtype.is_integer() or column.n_unique() < column.len() or column.len() < 64:
        return False
    places = np.corrcoef(column.cast(pl.Float64).to_numpy(), np.arange(column.len()))[0, 1]
    return bool(places > 0.999 and (column.diff().drop_nulls() > 0).all())


def _is_consequence_of_label(rows: Rows, name: str) -> bool:
    """Whether the label, and no other column, explains a column that predicts it."""
    column = rows.frame[name]
    if not column.dtype.is_numeric() or column.null_count() or len(rows.codes) < FEWEST_COMPARED:
        return False
    other_names = (each for each in rows.names if each != name)
    others = [part for each in other_names for part in _make_number_columns(rows.frame[each])]
    values, truth = _standardise(column.cast(pl.Float64).to_numpy()), _standardise(rows.codes)
    if not others or np.var(_compute_residuals(truth, values)) > 1 - TELLING:
        return False
    features = np.stack(others, axis=1)
    predicted = _predict_out_of_fold(features, truth)
    if 1 - np.var(truth - predicted) > MOST_OF_OTHERS:
        return False
    of_label, of_column = _compute_residuals(truth, values), _compute_residuals(values, truth)
    adds = _measure_correlation(_compute_residuals(predicted, values), of_label)
    lacks = _measure_correlation(_compute_residuals(predicted, truth), of_column)
    biased = _measure_correlation(_predict_out_of_fold(features, of_column), of_column)
    return adds > CLEAR and abs(lacks) < NOTHING and biased < NOTHING_OF_MANY


def _make_number_columns(column: pl.Series) -> list[Floats]:
    if is_ordered(column):
        numbers = column.to_physical().cast(pl.Float64).fill_nan(None)
        filled = _standardise(numbers.fill_null(strategy="mean").fill_null(0.0).to_numpy())
        return [filled, filled**2]
    texts = column.cast(pl.String).fill_null("").alias("text")
    values = texts.value_counts(sort=True)["text"][:MOST_VALUES]
    return [_standardise((texts == each).to_numpy() * 1.0) for each in values]


def _standardise(values: Floats) -> Floats:
    return np.asarray((values - values.mean()) / max(float(values.std()), 1e-12))


def _compute_residuals(values: Floats, given: Floats) -> Floats:
    """Return the residuals of a polynomial of the third degree."""
    powers = np.column_stack([np.vander(np.clip(given, -4, 4), 4), given])
    return np.asarray(values - powers @ np.linalg.lstsq(powers, values, rcond=None)[0])


def _predict_out_of_fold(features: Floats, values: Floats) -> Floats:
    """Predict each row's value by ridge regression on the rows of the other folds."""
    folds = PredefinedSplit(np.arange(len(values)) % FOLDS)
    return np.asarray(cross_val_predict(Ridge(RIDGE), features, values, cv=folds))


def _measure_correlation(first: Floats, second: Floats) -> float:
    """Return a correlation in standard errors."""
    if min(first.std(), second.std()) < 1e-9:
        return 0.0
    correlation = float(np.corrcoef(first, second)[0, 1])
    return correlation * float(np.sqrt(len(first) / max(1 - correlation**2, 1e-9)))
