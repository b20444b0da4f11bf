"""Check `telling_columns`: raw columns that predict the label alone (possible leakage)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.borders import is_cut_at_borders
from perennial.check_skeleton.checks.data.consequences import follows_from_label
from perennial.check_skeleton.checks.data.positions import describe_label_position
from perennial.check_skeleton.checks.data.reading import is_read
from perennial.check_skeleton.checks.data.signals import (
    NONE,
    Numbers,
    groups_of,
    is_plain,
    join_names,
    probed_rows,
    signal_of,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL

TELLING_SHARE = 0.95
FINE_BINS = 64
IN_ORDER = 0.99999
FEWEST_VALUES = 20
# Fewer rows may be in an order, or agree, by chance.
FEWEST_ROWS = 64
# At most this many values, each with one label in every row, define it; names may be knowledge.
MOST_DEFINING = 20
# Row numbers are dense: a sample of them spans little more than the rows of the split.
DENSE = 3.0
NUMBERED_SHARE = 0.8
WITH_TIME = 0.99


@dataclass(frozen=True)
class Rows:
    """Rows of the training sample, with their labels.

    Attributes:
        subject: The subject of the check.
        frame: Rows from the whole training sample.
        labels: Their labels as columns of numbers.
        codes: Their labels as `encode` returns them.
        names: Features that hold single values.
    """

    subject: Subject
    frame: pl.DataFrame
    labels: Numbers
    codes: Numbers
    names: list[str]

    @property
    def is_number(self) -> bool:
        """Whether the label is an amount, not a class."""
        return self.subject.task.kind == "regression"


@check(
    "telling_columns",
    expects=(
        f"no feature that explains {TELLING_SHARE:.0%} of the label's variance alone, no "
        "row numbers among the features, and no position of a window that holds the label"
    ),
    source="guides: the target, or a consequence of it, used as an input; is it known when the "
    "prediction is made?",
    needs_losses=False,
)
def check_telling_columns(subject: Subject, judge: Judge) -> CheckResult:
    """Check that no raw column and no fixed position of the inputs reveals the label."""
    columns = subject.task.columns
    if columns.label in columns.features or subject.task.reconstructs_inputs:
        return judge.skipped("the label is a feature by design")
    if subject.task.kind == "statistic":
        return _judge_position(judge, subject) or judge.skipped("there is no single label")
    frame, labels = probed_rows(subject)
    codes = subject.train[LABEL][:: max(subject.num_rows() // len(frame), 1)][: len(frame)]
    rows = Rows(
        subject, frame, labels, codes.double().numpy(),
        [name for name in columns.features if is_plain(frame[name])],
    )  # fmt: skip
    found = {
        name: signal_of(groups_of(frame[name], FINE_BINS), labels).share for name in rows.names
    }
    best = max(found, key=lambda name: found[name], default="")
    return (
        _judge_copies(judge, rows)
        or _judge_definition(judge, rows, found)
        or _judge_position(judge, subject)
        or _judge_shares(judge, rows, found)
        or judge.passed(
            f"the best single predictor is {best}: {found[best]:.1%} of the label's variance"
            if best
            else "no feature holds single values"
        )
    )


def _judge_copies(judge: Judge, rows: Rows) -> CheckResult | None:
    """Judge columns that are the label under another name."""
    label = rows.frame[rows.subject.task.columns.label]
    same = [name for name in rows.names if _is_label(rows.frame[name], label, rows.labels)]
    if not same:
        return None
    report = judge.failed if _matters(rows, same) else judge.warned
    return report(
        f"the label of every row is determined by {join_names(same)}",
        hint="it is the label under another name or in another unit: remove it from the features",
    )


def _judge_position(judge: Judge, subject: Subject) -> CheckResult | None:
    place = describe_label_position(subject)
    if not place:
        return None
    return judge.failed(
        f"{place}, in every row",
        hint="the window contains the label: it ends one step too late, the shift has the wrong "
        "sign, or a lag is 0. End it before the label, or shift the label further",
    )


def _judge_definition(judge: Judge, rows: Rows, found: dict[str, float]) -> CheckResult | None:
    """Fail on columns that determine every class, or that only the label explains."""
    telling = sorted(
        (
            name
            for name, share in found.items()
            if share > NUMBERED_SHARE and not _follows_time(rows, name)
        ),
        key=lambda name: -found[name],
    )
    if counted := [n for n in telling if not rows.is_number and _numbers(rows, n)]:
        if _matters(rows, counted):
            return judge.failed(
                f"{found[counted[0]]:.1%} of the label's variance is explained by "
                f"{join_names(counted)} alone, and each row has a different number",
                hint="a row's number is its position, and the rows were sorted by the label: list "
                "the column under data.ids, and shuffle the export",
            )
        return None
    defining = [name for name in telling if not rows.is_number and _defines(rows, name)]
    absent = [name for name in rows.names if not rows.is_number and _is_absent(rows, name)]
    if (defining or absent) and _matters(rows, defining + absent):
        return judge.failed(
            (
                "the class of every row is determined by "
                if defining
                else "empty in one class only: "
            )
            + join_names(defining + absent),
            hint="the label was made from it, or it is written after the outcome is known: remove "
            "it from the features",
        )
    if rows.is_number:
        late = [n for n in telling if follows_from_label(rows.frame, rows.names, n, rows.codes)]
        if late and _matters(rows, late):
            return judge.failed(
                f"{found[late[0]]:.1%} of the label's variance is explained by {join_names(late)} "
                "alone; the label explains it, and no other column does",
                hint="a noisy copy of the outcome, or a consequence of it: columns known before "
                "the outcome depend on the other features, too. Remove it from the features",
            )
    return None


def _judge_shares(judge: Judge, rows: Rows, found: dict[str, float]) -> CheckResult | None:
    frame = rows.frame
    empty = {
        name: signal_of(np.where(frame[name].is_null().to_numpy(), NONE, 0), rows.labels).share
        for name in rows.names
        if frame[name].null_count()
    }
    if telling := [name for name, share in {**found, **empty}.items() if share > TELLING_SHARE]:
        first = telling[0]
        by_absence = empty.get(first, 0.0) > TELLING_SHARE
        return judge.warned(
            f"{max(found[first], empty.get(first, 0.0)):.1%} of the label's variance is explained "
            f"by {'missing values of ' if by_absence else ''}{join_names(telling)} alone",
            hint="is it known when the prediction is made? If it is written after the outcome is "
            "known, remove it from the features, or declare data.available_at",
        )
    if counting := [name for name in rows.names if _counts(frame[name])]:
        return judge.warned(
            f"row numbers among the features: {join_names(counting)}",
            hint="a row's number is its position, and labels may be sorted: list the column under "
            "data.ids",
        )
    return None


def _matters(rows: Rows, names: Sequence[str]) -> bool:
    """Whether `encode` reads one of the columns, and other features exist."""
    return len(rows.names) > 1 and any(is_read(rows.subject, name) for name in names)


def _is_label(column: pl.Series, label: pl.Series, labels: Numbers) -> bool:
    """Whether values and labels correspond one to one in every row."""
    if column.null_count() or (not column.dtype.is_numeric() and labels.shape[1] == 1):
        return False
    pairs = pl.DataFrame({"value": column, "label": label}).unique()
    is_paired = pairs["value"].n_unique() == pairs.height == pairs["label"].n_unique()
    if labels.shape[1] == 1:  # numbers: all different in any column, so their order must agree
        order = np.corrcoef(column.rank().to_numpy(), labels[:, 0])[0, 1]
        return is_paired and pairs.height > FEWEST_VALUES and abs(order) > IN_ORDER
    return is_paired and pairs.height > 1


def _defines(rows: Rows, name: str) -> bool:
    """Whether values, or thresholds among many rows, determine every class."""
    column = rows.frame[name]
    if column.null_count() or column.len() < FEWEST_ROWS:
        return False
    if _is_ordered(column):
        values = column.to_physical().cast(pl.Float64).to_numpy()
        if is_cut_at_borders(values, rows.codes):
            return True
    groups = pl.DataFrame({"value": column, "code": rows.codes})
    decided = groups.group_by("value").agg(pl.col("code").n_unique(), pl.len())
    return (
        decided.height <= MOST_DEFINING
        and bool((decided["code"] == 1).all())
        and column.len() >= FEWEST_ROWS * decided.height
    )


def _is_absent(rows: Rows, name: str) -> bool:
    """Whether the column is empty in all rows of one of two classes, and in no others."""
    missing = rows.frame[name].is_null().to_numpy()
    least = min(missing.sum(), (~missing).sum())
    is_two = len(np.unique(rows.codes)) == 2
    return bool(is_two and least >= FEWEST_VALUES and _is_split(missing, rows.codes))


def _is_split(parts: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]", codes: Numbers) -> bool:
    return not set(codes[parts].tolist()) & set(codes[~parts].tolist())


def _follows_time(rows: Rows, name: str) -> bool:
    """Whether a column rises with a stream's time, over which labels may change permanently."""
    time = rows.subject.data.time if rows.subject.data else None
    column = rows.frame[name]
    if time is None or time not in rows.frame.columns or not _is_ordered(column):
        return False
    first, second = (each.rank().fill_null(0).to_numpy() for each in (column, rows.frame[time]))
    return bool(np.corrcoef(first, second)[0, 1] > WITH_TIME)


def _is_ordered(column: pl.Series) -> bool:
    return column.dtype.is_numeric() or column.dtype.is_temporal()


def _numbers(rows: Rows, name: str) -> bool:
    """Whether integers are all different and dense, as row numbers are."""
    column = rows.frame[name]
    if not column.dtype.is_integer() or column.null_count() or column.len() < FEWEST_ROWS:
        return False
    reach = int(column.max()) - int(column.min())  # type: ignore[arg-type]
    return column.n_unique() == column.len() and reach <= DENSE * rows.subject.train_split_rows


def _counts(column: pl.Series) -> bool:
    """Whether integers, all different, rise evenly with the rows."""
    if not column.dtype.is_integer() or column.n_unique() < column.len() or column.len() < 64:
        return False
    places = np.corrcoef(column.cast(pl.Float64).to_numpy(), np.arange(column.len()))[0, 1]
    return bool(places > 0.999 and (column.diff().drop_nulls() > 0).all())
