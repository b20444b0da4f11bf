"""Columns and positions that tell the label: its copies, its definition, its consequences."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
import torch

from mixed_numbers import Numbers, TwoClasses, WithMissingNumbers, subject_of, walk
from other_styles import numbers_table, table_of
from perennial.check_skeleton.checks.data.leaks.telling_columns import check_telling_columns
from perennial.engine.task import LABEL


class Cut(Numbers):
    """Takes the last number of a window away before it reads it."""

    def window(self, values):
        return values[:, :-1]


class ReadsNoCopy(TwoClasses):
    unread = ("copy",)


class Fields(TwoClasses):
    """Four classes as codes."""

    kind = "multiclass"

    def encode(self, rows):
        batch = super().encode(rows)
        return batch | ({LABEL: batch[LABEL].long()} if LABEL in batch else {})


class Items(Numbers):
    """Items as codes, lists of them padded on the left."""

    kind = "multiclass"

    def fit(self, train):
        self.fitted = {}

    def encode(self, rows):
        lists = [[0] * (12 - len(each)) + [int(item[4:]) for item in each] for each in rows["seen"]]
        batch = {"x": torch.tensor(lists)}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor([int(item[4:]) for item in rows["label"]])
        return batch


RNG = np.random.default_rng
X, SCORE = numbers_table()
ROWS = len(X)
CLASS = (SCORE > 0).astype(int)
AMOUNT = 50 + 10 * SCORE


def classes(**more):
    return table_of(X, CLASS, **more)


def collected(share, also=0.0):
    """What was collected later, of most rows of the rarer class, and of a part of the others."""
    label = (np.quantile(SCORE, 1 - share) < SCORE).astype(int)
    has = RNG(1).random(ROWS) < np.where(label == 1, 0.8, also)
    return table_of(X, label, collected=np.where(has, RNG(2).lognormal(5, 1, ROWS).round(), 0.0))


def delay():
    """Positive for one class, as it was decided."""
    return np.where(CLASS == 1, RNG(1).exponential(40, ROWS), -RNG(2).exponential(20, ROWS))


def months():
    return RNG(5).integers(0, 40, ROWS) * 1.0


def of_the_rarer(values, others):
    """A column that has one number, or numbers, for the rarer class, and others for the rest."""
    rarer = (np.quantile(SCORE, 0.75) < SCORE).astype(int)
    return table_of(X, rarer, days=np.where(rarer == 1, values, others))


def of_four(months_of):
    own = np.digitize(SCORE, np.quantile(SCORE, [0.25, 0.5, 0.75]))
    return table_of(X, own, months=months_of(own))


def sorted_classes():
    rows = classes().sort("label")
    return rows.with_columns(number=pl.int_range(1, ROWS + 1), row=pl.int_range(ROWS))


def with_dose():
    """What was given once the outcome was known."""
    label = AMOUNT + 15 * RNG(4).normal(size=ROWS)
    return table_of(X, label, dose=0.04 * (label + 5 * RNG(1).normal(size=ROWS)))


def with_advance(*, is_guess):
    """A monthly advance that was set by the year's amount, or by what was expected of it."""
    label = (AMOUNT + 3 * RNG(4).normal(size=ROWS)).round()
    advance = 0.11 * (AMOUNT if is_guess else label)
    return table_of(X, label, advance=advance.round(1))


def windows(ahead=0, *, of=None, size=16, every=2):
    """Windows, and as labels the values so many steps behind them, or within them below 0."""
    series = walk() if of is None else of
    ends = range(size, len(series) - max(ahead, 0) - 1, every)
    return pl.DataFrame(
        {
            "row": range(len(ends)),
            "history": [series[i - size : i].tolist() for i in ends],
            "label": [float(series[i + ahead]) for i in ends],
        }
    )


def ups(step):
    """Whether a series rises behind its window, or in its last move already."""
    rows, series = windows(), walk()
    ends = range(16, len(series) - 1, 2)
    label = [int(series[i + step] > series[i + step - 1]) for i in ends]
    return rows.with_columns(label=pl.Series(label))


def sessions(*, with_next):
    rng, rows = RNG(3), []
    for _ in range(1500):
        items = [f"item{int(code)}" for code in rng.integers(1, 30, rng.integers(4, 11))]
        rows.append((items if with_next else items[:-1], items[-1]))
    frame = pl.DataFrame(rows, schema=["seen", "label"], orient="row")
    return frame.with_columns(row=pl.int_range(pl.len()))


def several_hours(behind):
    """Six hours behind a window, or its last six."""
    rows, series = windows(), walk()
    ends = range(16, len(series) - 1, 2)
    label = [series[i + behind - 6 : i + behind].tolist() for i in ends if i + behind < 3000]
    return rows.head(len(label)).with_columns(label=pl.Series(label))


def hours_with_gaps(behind):
    """The same, with the newest reading missing in one window of ten."""
    newest = pl.when(pl.col("row") % 10 > 0).then(pl.col("history").list.get(-1))
    return several_hours(behind).with_columns(
        history=pl.concat_list(pl.col("history").list.head(15), newest)
    )


def charged(own, charge):
    """One of three fees, with a charge for the class 2."""
    return RNG(6).choice([20.0, 35.0, 70.0], ROWS) + np.where(own == 2, charge, 0.0)


def mean_of_ticket(*, own):
    """The mean label of the rows that share a ticket, the row's own label included or left out."""
    rows = classes().with_columns(ticket=pl.Series(RNG(6).integers(0, ROWS // 2, ROWS)))
    total, count = (f("label").over("ticket") for f in (pl.sum, pl.count))
    left_out = pl.when(count > 1).then((total - pl.col("label")) / (count - 1)).otherwise(0.5)
    return rows.with_columns(ticket_mean=total / count if own else left_out).drop("ticket")


class MeansOfTickets(TwoClasses):
    """Learns the mean label of each ticket, and reads its own rows' means."""

    def fit(self, train):
        frame = train.collect()
        self.means = dict(frame.group_by("ticket").agg(pl.mean("label")).sort("ticket").iter_rows())
        super().fit(train)

    def state(self):
        return self.fitted | {"tickets": list(self.means.items())}

    def numbers(self, frame):
        means = [self.means.get(ticket, 0.5) for ticket in frame["ticket"]]
        return np.column_stack([super().numbers(frame.drop("ticket")), means])

    def used(self):
        return [name for name in super().used() if name != "ticket"]


class Hours(Numbers):
    kind = "statistic"


class HoursWithoutGaps(Hours):
    def window(self, values):
        return np.nan_to_num(values)


class HoursAboutTheirMean(Hours):
    def window(self, values):
        return values - values.mean(axis=1, keepdims=True)


BUGS = {
    "a bound on an amount makes the classes": (
        TwoClasses, lambda: classes(delay=delay()), "the class of every row is determined"),
    "grades make the classes": (
        TwoClasses, lambda: classes(grade=CLASS * 5 + RNG(1).integers(0, 5, ROWS)),
        "class of every row is determined"),
    "each of several states has one class": (
        TwoClasses,
        lambda: classes(state=[("new", "open", "gone", "shut")[2 * c + i % 2]
                               for i, c in enumerate(CLASS)]),
        "determined by state"),
    "it is empty for one class": (
        TwoClasses,
        lambda: classes(closed=[float(i % 300) if c else None for i, c in enumerate(CLASS)]),
        "empty in one class only: closed"),
    "it is not a number for one class": (
        WithMissingNumbers,
        lambda: classes(closed=[np.nan if c else float(i % 300) for i, c in enumerate(CLASS)]),
        "empty in one class only: closed"),
    "it is not a number for the other class": (
        WithMissingNumbers,
        lambda: classes(closed=[float(i % 300) if c else np.nan for i, c in enumerate(CLASS)]),
        "empty in one class only: closed"),
    "it is written for most rows of the rarer class": (
        TwoClasses, lambda: collected(0.3), "one value in the rows of a class, and others in other rows: collected"),
    "a class has a charge on top of its amount": (
        Fields, lambda: of_four(lambda own: charged(own, 8.0)), "between those of the others: months"),
    "the label stands in another column": (
        TwoClasses, lambda: classes(copy=np.where(CLASS == 1, "yes", "no")), "determined by copy"),
    "the rows were sorted by class and numbered": (
        TwoClasses, sorted_classes, "each row has a different number"),
    "a column follows from the amount": (
        Numbers, with_dose, "explained by dose .*no other column does"),
    "a multiple of the amount is rounded": (
        Numbers, lambda: with_advance(is_guess=False), "determined by advance"),
    "the window ends with its label": (Numbers, lambda: windows(-1), r"history\[-1\] is the label"),
    "the label is shifted backwards": (Numbers, lambda: windows(-4), r"history\[-4\] is the label"),
    "the direction is known": (
        TwoClasses, lambda: ups(-1), r"history\[-1\] is above history\[-2\]"),
    "the last item is the next": (
        Items, lambda: sessions(with_next=True), r"seen\[-1\] is the label"),
    "all hours to predict are in the window": (
        Hours, lambda: several_hours(0), r"history\[-1\] is the label"),
    "all hours to predict are in a window that is encoded about its mean": (
        HoursAboutTheirMean, lambda: several_hours(0), r"history\[-1\] is the label"),
    "the first hour to predict is in the window": (
        Hours, lambda: several_hours(5), r"history\[-1\] is the label"),
    "the first hour to predict is in a window with gaps": (
        HoursWithoutGaps, lambda: hours_with_gaps(5), r"history\[-1\] is the label"),
    "a mean by group counts the row's own label": (
        TwoClasses, lambda: mean_of_ticket(own=True), "ticket_mean is the label's mean"),
    "means by group are learned from the rows that read them": (
        MeansOfTickets,
        lambda: classes(ticket=RNG(6).integers(0, ROWS // 2, ROWS)), "is the label's mean"),
}  # fmt: skip


def examined(task_type, rows, folder, **data):
    return check_telling_columns(subject_of(task_type, rows, folder, **data))


@pytest.mark.parametrize("name", BUGS)
def test_column_that_predicts_the_label_alone_fails(name, tmp_path):
    task_type, rows, measured = BUGS[name]
    result = examined(task_type, rows(), tmp_path)
    assert (result.outcome, result.measured) == ("failed", result.measured)
    assert pl.Series([result.measured]).str.contains(measured)[0], result.measured


OVERWRITTEN = {
    "it is set to zero with the outcome, for the rarer class": (
        TwoClasses, lambda: of_the_rarer(0.0, months()), "others in other rows: days"),
    "it is overwritten by the day of the export, for the rarer class": (
        TwoClasses, lambda: of_the_rarer(365, RNG(6).integers(100, 366, ROWS)), "other rows: days"),
    "it is overwritten in one of several classes": (
        Fields, lambda: of_four(lambda own: np.where(own == 2, 0.0, months())), "other rows: months"),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_a_number_that_one_class_has_once_warns(name, tmp_path):
    """No failure: flats have no garden, and electric cars no displacement."""
    task_type, rows, measured = OVERWRITTEN[name]
    result = examined(task_type, rows(), tmp_path)
    assert (result.outcome, result.measured) == ("warned", result.measured)
    assert measured in result.measured


# Healthy neighbours


def blobs():
    """Two clusters so far apart that one column divides them."""
    label = RNG(1).integers(0, 2, ROWS)
    return table_of(RNG(2).normal(size=(ROWS, 2)) + label[:, None] * [9.0, 1.0], label)


def flights():
    """The way tells nearly all of the time in the air; wind and season add to it."""
    rng = RNG(1)
    distance, month = rng.gamma(2, 500, ROWS), rng.integers(1, 13, ROWS)
    headwind = rng.normal(size=ROWS)
    label = 20 + distance / 8 + 4 * np.cos(month) + 9 * headwind + 5 * rng.normal(size=ROWS)
    return pl.DataFrame(
        {"row": range(ROWS), "distance": distance, "month": month, "wind": headwind, "label": label}
    )


def sensors():
    """A cheap sensor next to a good one: it reads too much in damp air."""
    rng = RNG(1)
    damp, heat = rng.random(ROWS), rng.normal(15, 8, ROWS)
    label = 30 + 2 * heat + 10 * damp + 5 * rng.normal(size=ROWS)
    cheap = label + 8 * damp + rng.normal(size=ROWS)
    return pl.DataFrame(
        {"row": range(ROWS), "cheap": cheap, "damp": damp, "heat": heat, "label": label}
    )


def fahrenheit():
    celsius = RNG(1).normal(15, 10, ROWS)
    return pl.DataFrame({"row": range(ROWS), "celsius": celsius, "label": 32 + 1.8 * celsius})


def exclusive_or():
    a, b = RNG(1).integers(0, 2, (2, ROWS))
    return pl.DataFrame({"row": range(ROWS), "a": a, "b": b, "label": a ^ b})


def changing_stream():
    """A counter rises with time, and so did the rarer class, from one day to the next."""
    at = [datetime(2024, 1, 1) + timedelta(hours=i) for i in range(ROWS)]
    late = (np.arange(ROWS) + RNG(1).integers(-20, 20, ROWS) > ROWS * 0.45).astype(int)
    return classes(at=at, number=np.arange(ROWS) + 7).with_columns(label=pl.Series(late))


def rates():
    """A rate that is set now and then, filled forward."""
    return windows(of=np.repeat(walk(300), 200)[:3000].round(2))


HEALTHY = {
    "clusters far apart": (TwoClasses, blobs, {}),
    "a physical cause": (Numbers, flights, {}),
    "a sensor to calibrate": (Numbers, sensors, {}),
    "a function of one number": (Numbers, fahrenheit, {}),
    "a mean of the others in a group": (TwoClasses, lambda: mean_of_ticket(own=False), {}),
    "fees of a class that are larger": (
        Fields, lambda: of_four(lambda own: charged(own, 100.0)), {}),
    "a charge that others have, too": (
        Fields, lambda: of_four(lambda own: charged(own * (RNG(2).random(ROWS) < 0.9), 8.0)), {}),
    "exclusive or": (TwoClasses, exclusive_or, {}),
    "a counter in a stream": (TwoClasses, changing_stream, {"time": "at"}),
    "a copy that is not read": (
        ReadsNoCopy, lambda: classes(copy=np.where(CLASS == 1, "yes", "no")), {}),
    "written for a few rows of the other class": (TwoClasses, lambda: collected(0.3, 0.01), {}),
    "often zero in both classes": (
        TwoClasses, lambda: of_the_rarer(*([months() * (RNG(7).random(ROWS) < 0.2)] * 2)), {}),
    "mostly zero in the rarer class": (
        TwoClasses, lambda: of_the_rarer(months() * (RNG(7).random(ROWS) < 0.03), months()), {}),
    "a choice among a few that rules out the rarer class": (
        TwoClasses, lambda: of_the_rarer(9, RNG(7).integers(3, 10, ROWS)), {}),
    "the next hour": (Numbers, windows, {}),
    "the label is cut from the window": (Cut, lambda: windows(-1), {}),
    "the next direction": (TwoClasses, lambda: ups(0), {}),
    "the next item": (Items, lambda: sessions(with_next=False), {}),
    "six hours behind": (Hours, lambda: several_hours(6), {}),
    "hours of which some are known": (Hours, lambda: several_hours(3), {}),
    "an advance by a close guess": (Numbers, lambda: with_advance(is_guess=True), {}),
    "six hours behind a window about its mean": (
        HoursAboutTheirMean, lambda: several_hours(6), {}),
    "what is filled forward": (Numbers, rates, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_columns_known_in_advance_pass(name, tmp_path):
    task_type, rows, data = HEALTHY[name]
    result = examined(task_type, rows(), tmp_path, **data)
    assert result.outcome != "failed", (result.measured, result.hint)


def fields(count):
    """Papers of four fields, and a number for each field that `count` makes of the cited papers."""
    rng = RNG(8)
    own = rng.integers(0, 4, 2000)
    cited = [
        np.where(rng.random(size) < 0.6, field, rng.integers(0, 4, size))
        for field, size in zip(own, rng.integers(0, 4, 2000), strict=True)
    ]
    counts = np.stack([np.bincount(each, minlength=4) for each in cited])
    label, numbers = count(own, counts)
    return pl.DataFrame({"row": range(2000), "fields": numbers.tolist(), "label": label})


def with_itself(own, counts):
    return own, counts + np.eye(4, dtype=int)[own]


def in_another_order(own, counts):
    return (own + 1) % 4, with_itself(own, counts)[1]


def most_of_them(own, counts):
    """The field that most are of, by which the label is made."""
    return counts.argmax(axis=1), counts


def ranks_and_shares(own, counts):
    return own, (1 + counts) / (4 + counts.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("count", [with_itself, in_another_order])
def test_counts_of_labels_with_the_rows_own_warn(count, tmp_path):
    result = check_telling_columns(subject_of(Fields, fields(count), tmp_path))
    assert result.outcome == "warned", result.measured
    assert "that of the row's own class is above 0 in every row" in result.measured


@pytest.mark.parametrize("count", [lambda *pair: pair, most_of_them, ranks_and_shares])
def test_counts_of_other_rows_labels_pass(count, tmp_path):
    result = check_telling_columns(subject_of(Fields, fields(count), tmp_path))
    assert result.outcome == "passed", result.measured


def known_for(is_known):
    """Days of notice, where they are known."""
    days = pl.Series(RNG(9).normal(30, 5, ROWS))
    return classes().with_columns(notice=pl.when(pl.Series(is_known)).then(days))


@pytest.mark.parametrize("missing", [None, np.nan])
def test_values_of_those_who_left_alone_warn(missing, tmp_path):
    known = known_for((CLASS == 1) & (RNG(1).random(ROWS) < 0.5))
    known = known.with_columns(pl.col("notice").fill_null(missing) if missing else pl.all())
    result = check_telling_columns(subject_of(TwoClasses, known, tmp_path))
    assert result.outcome == "warned", result.measured
    assert "notice has values in rows of one class only" in result.measured


@pytest.mark.parametrize(
    "is_known",
    [
        RNG(1).random(ROWS) < 0.5,
        RNG(1).random(ROWS) < np.where(CLASS == 1, 0.5, 0.1),
        (CLASS == 1) & (np.arange(ROWS) < 60),
        np.full(ROWS, fill_value=True),
    ],
)
def test_values_of_both_classes_and_few_values_pass(is_known, tmp_path):
    result = check_telling_columns(subject_of(TwoClasses, known_for(is_known), tmp_path))
    assert result.outcome == "passed", result.measured


def test_values_in_a_few_rows_of_nearly_the_only_class_pass(tmp_path):
    label = (np.arange(ROWS) % 100 == 7).astype(int)
    known = pl.Series(np.arange(ROWS) % 10 == 3)
    days = pl.Series(RNG(9).normal(30, 5, ROWS))
    frame = table_of(X, label).with_columns(notice=pl.when(known).then(days))
    result = check_telling_columns(subject_of(TwoClasses, frame, tmp_path))
    assert "one class only" not in result.measured, result.measured
