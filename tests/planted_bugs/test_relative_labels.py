"""Labels made relative to their own row are healthy; those that do not follow it are not."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Binary, Numbers, dataset_of
from perennial.check_skeleton.checks.data.encoding.encoding import check_labels
from perennial.check_skeleton.checks.data.leaks.leakage import check_shuffled_labels
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS

ROWS = 600


def series(*, several: bool, rows: int = ROWS) -> pl.DataFrame:
    """Windows of five values; the label is the next one, rounded, or the next three."""
    generator = np.random.default_rng(4)
    steps = np.cumsum(generator.normal(size=rows + 8)) + 60
    windows = np.stack([steps[row : row + 5] for row in range(rows)])
    ahead = np.stack([steps[row + 5 : row + 8] for row in range(rows)]).round()
    columns = {f"x{lag}": windows[:, lag] for lag in range(5)}
    more = {"other": generator.integers(0, 30, rows), "day": np.arange(rows) % 7}
    label = ahead.tolist() if several else ahead[:, 0]
    return pl.DataFrame({"row": range(rows), **columns, "label": label, **more})


def window_of(rows):
    return rows.select([f"x{lag}" for lag in range(5)]).to_numpy()


class Scaled(Numbers):
    """counted from the window's mean, in its standard deviations"""

    def encode(self, rows):
        window = window_of(rows)
        batch = {"x": torch.from_numpy((window - window.mean(1, keepdims=True)).astype(np.float32))}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.from_numpy(self.code(rows, window)).float()
        return batch

    def code(self, rows, window):
        return (rows["label"].to_numpy() - window.mean(1)) / (window.std(1) + 0.1)


class Ratio(Scaled):
    """the logarithm of the ratio to the last value"""

    def code(self, rows, window):
        with np.errstate(invalid="ignore"):
            return np.log(rows["label"].to_numpy() / window[:, -1])


class Clipped(Scaled):
    """the change since the last value, clipped"""

    def code(self, rows, window):
        return np.clip(rows["label"].to_numpy() - window[:, -1], -1.5, 1.5)


class UpOrDown(Binary):
    """whether the value goes up"""

    encode = Scaled.encode

    def code(self, rows, window):
        return (rows["label"].to_numpy() > window[:, -1]) * 1.0


class SeveralAhead(Scaled):
    """three values ahead, counted from the last one"""

    kind = "statistic"

    def fit_label(self, labels):
        return {}

    def code(self, rows, window):
        return np.array(rows["label"].to_list()) - window[:, -1:]


class OtherColumn(Scaled):
    """another column's value"""

    def code(self, rows, window):
        return rows["other"].to_numpy() - window[:, -1]


class NextRow(Scaled):
    """the next row's value"""

    def code(self, rows, window):
        return np.roll(rows["label"].to_numpy(), -1) - window[:, -1]


class FromTheBatch(Scaled):
    """scaled by the batch"""

    def code(self, rows, window):
        value = rows["label"].to_numpy() - window[:, -1]
        return value / value.std()


class NoiseOfTheId(Scaled):
    """noise that the row's id draws"""

    def code(self, rows, window):
        noise = [np.random.default_rng(row).normal() for row in rows["row"].to_list()]
        return rows["label"].to_numpy() + noise


class Noise(Scaled):
    """noise"""

    def code(self, rows, window):
        return rows["label"].to_numpy() + np.random.default_rng().normal(size=rows.height)


class WrapsAround(Scaled):
    """wrapped around at the window's end"""

    def code(self, rows, window):
        return (rows["label"].to_numpy() + np.floor(window[:, -1])) % 10


class SignOfTheDay(Scaled):
    """turned over on some days"""

    def code(self, rows, window):
        return rows["label"].to_numpy() * np.where(rows["day"].to_numpy() == 3, -1, 1)


class AheadOfOthers(SeveralAhead):
    """three values ahead of the next row"""

    def code(self, rows, window):
        return np.roll(np.array(rows["label"].to_list()), 1, axis=0) - window[:, -1:]


class WithTheLevel(Scaled):
    """counted from the window's mean, which is an input too"""

    def encode(self, rows):
        level = torch.from_numpy(window_of(rows).mean(1, keepdims=True)).float() / 10 - 6
        batch = super().encode(rows)
        return {**batch, "x": torch.cat([batch["x"], level, torch.zeros_like(level)], 1)}

    def code(self, rows, window):
        return (rows["label"].to_numpy() - window.mean(1)) / 10

    def target(self, batch):
        return batch[LABEL]


class WithTheLevelAndTheLabel(WithTheLevel):
    """counted from the window's mean, and the label is an input"""

    def encode(self, rows):
        batch = super().encode(rows)
        if "label" in rows.columns:
            batch["x"][:, -1] = torch.tensor(rows["label"].to_list()) / 10 - 6
        return batch


@pytest.fixture(scope="module")
def examine(tmp_path_factory):
    def examine_task(task_type, check=check_labels, rows=ROWS):
        frame = series(several=issubclass(task_type, SeveralAhead), rows=rows)
        dataset = dataset_of(frame, tmp_path_factory.mktemp("table"))
        make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
        training = TrainingSection(seed=1, steps=50, global_batch_size=64)
        return check(Subject.prepare(make, dataset, SETTINGS, training))

    return examine_task


@pytest.mark.parametrize(
    "task_type", [Scaled, Ratio, Clipped, UpOrDown, SeveralAhead], ids=lambda each: each.__doc__
)
def test_labels_may_be_relative_to_their_own_row(examine, task_type):
    result = examine(task_type)
    assert result.outcome == "passed", result.measured


@pytest.mark.parametrize(
    "bug",
    [
        OtherColumn, NextRow, FromTheBatch, NoiseOfTheId, Noise, WrapsAround, SignOfTheDay,
        AheadOfOthers,
    ],
    ids=lambda bug: bug.__doc__,
)  # fmt: skip
def test_labels_that_do_not_follow_their_own_value_fail(examine, bug):
    result = examine(bug)
    assert result.outcome == "failed", result.measured
    assert "have several" in result.measured
    assert "shuffled, shifted" in result.hint


def test_shuffled_labels_may_be_predicted_from_what_they_are_counted_from(examine):
    healthy = examine(WithTheLevel, check_shuffled_labels, 4 * ROWS)
    assert healthy.outcome == "passed", healthy.measured
    assert "from inputs encoded with other labels" in healthy.measured
    leaking = examine(WithTheLevelAndTheLabel, check_shuffled_labels, 4 * ROWS)
    assert leaking.outcome == "failed", leaking.measured


class WithTheHour(Scaled):
    """a number after the hour's own level, which encode makes of the row's time"""

    def encode(self, rows):
        batch = super().encode(rows)
        angle = torch.from_numpy(rows["time"].dt.hour().to_numpy() * (2 * np.pi / 24)).float()
        return {**batch, "x": torch.stack([angle.sin(), angle.cos(), *batch["x"].T], 1)}

    def code(self, rows, window):
        return 1.0 * rows["label"].to_numpy()


def test_the_time_of_a_row_stays_with_its_inputs_while_labels_are_shuffled(tmp_path):
    rows = 4 * ROWS
    hours = np.arange(rows)
    frame = series(several=False, rows=rows).with_columns(
        time=pl.datetime(2026, 1, 1, time_zone="UTC") + pl.duration(hours=pl.Series(hours)),
        label=pl.Series(np.sin(hours * (2 * np.pi / 24))),
    )
    dataset = dataset_of(frame, tmp_path / "table", time="time")
    make = partial(WithTheHour, WithTheHour.Options(), dataset.snapshot.task_columns)
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    result = check_shuffled_labels(Subject.prepare(make, dataset, SETTINGS, training))
    assert result.outcome == "passed", result.measured


NAMES = [f"trail {each}" for each in range(30)]


def choices(*, as_list: bool) -> pl.DataFrame:
    """Four trails that were shown, and the one that was opened."""
    generator = np.random.default_rng(6)
    shown = [generator.choice(NAMES, 4, replace=False).tolist() for _ in range(ROWS)]
    opened = [row[place] for row, place in zip(shown, generator.integers(0, 4, ROWS), strict=True)]
    columns = (
        {"shown": shown}
        if as_list
        else {f"shown {place}": each for place, each in enumerate(zip(*shown, strict=True))}
    )
    return pl.DataFrame({"row": range(ROWS), **columns, "label": opened})


class PlaceInTheList(Numbers):
    """the place in the list that the row shows"""

    kind = "multiclass"
    as_list = True

    def fit(self, train):
        self.fitted = {}

    def encode(self, rows):
        shown = rows["shown"].to_list() if self.as_list else rows.select("^shown .$").rows()
        codes = [[NAMES.index(each) for each in row] for row in shown]
        batch = {"x": torch.tensor(codes).float()}
        if "label" in rows.columns:
            places = [list(row).index(own) for row, own in zip(shown, rows["label"], strict=True)]
            batch[LABEL] = torch.tensor(self.places(places))
        return batch

    def places(self, found):
        return found


class PlaceAmongColumns(PlaceInTheList):
    """the place among the columns that the row shows"""

    as_list = False


class CountedFromTheEnd(PlaceInTheList):
    """the place from the end"""

    def places(self, found):
        return [3 - place for place in found]


class PlaceOfTheNextRow(PlaceInTheList):
    """the next row's place"""

    def places(self, found):
        return found[1:] + found[:1]


class MergedPlaces(PlaceInTheList):
    """the first place or another, which no choice tells"""

    def places(self, found):
        return [min(place, 1) for place in found]


def examine_choices(task_type, folder):
    dataset = dataset_of(choices(as_list=task_type.as_list), folder)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    return check_labels(Subject.prepare(make, dataset, SETTINGS, training))


@pytest.mark.parametrize("task_type", [PlaceInTheList, PlaceAmongColumns, CountedFromTheEnd])
def test_labels_may_be_places_among_choices(task_type, tmp_path):
    result = examine_choices(task_type, tmp_path)
    assert result.outcome == "passed", result.measured


@pytest.mark.parametrize("task_type", [PlaceOfTheNextRow, MergedPlaces])
def test_places_that_are_not_the_row_s_own_fail(task_type, tmp_path):
    result = examine_choices(task_type, tmp_path)
    assert result.outcome == "failed", result.measured
