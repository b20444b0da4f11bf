"""Tasks of statistics with plain labels, several or weighted: their columns are judged as others'."""

import numpy as np
import polars as pl
import pytest
import torch

from mixed_numbers import ThreeAmounts, subject_of
from other_styles import dataset_of, numbers_table, table_of
from perennial.check_skeleton.checks.data.labels.label_alignment import check_label_alignment
from perennial.check_skeleton.checks.data.leaks.telling_columns import check_telling_columns
from perennial.check_skeleton.checks.data.values.lost_values import check_lost_values
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS


class Rate(ThreeAmounts):
    """One output, whose label lies beside the years that it counts for."""

    outputs = 1

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            years = torch.tensor(rows["years"].to_list(), dtype=torch.float32)
            batch[LABEL] = torch.stack([batch[LABEL], years], dim=1)
        return batch

    def losses(self, output, batch):
        number, years = batch[LABEL].unbind(dim=1)
        return years * (output.squeeze(1) - number) ** 2

    def score(self, predictions, labels):
        predicted, number, years = predictions.T
        return {"mae": float(np.average(np.abs(predicted - number), weights=years))}


class Forgetful(ThreeAmounts):
    """Every team is a name that it does not know."""

    def numbers(self, frame):
        return super().numbers(frame.with_columns(team=pl.lit("other")))


class ForgetfulRate(Forgetful, Rate):
    pass


class WeighedByTeam(Rate):
    """What a team's rows weigh is all that its name is for."""

    unread = ("team",)

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            names = torch.tensor(rows["team"].replace_strict(WEIGHTS).to_list())
            batch[LABEL][:, 1] *= names
        return batch


WEIGHTS = {"north": 1.0, "east": 2.0, "south": 0.5, "west": 1.5}
ROWS = 3000
X, SCORE = numbers_table(ROWS)
YEARS = np.random.default_rng(7).uniform(0.1, 1.0, ROWS)
EFFECT = np.array([-3.0, 0.0, 3.0, 1.0])
TEAM = np.random.default_rng(8).integers(0, 4, ROWS)
TARGET = SCORE + EFFECT[TEAM]
KINDS = {"three outputs": ThreeAmounts, "rate": Rate}
FORGETFUL = {"three outputs": Forgetful, "rate": ForgetfulRate}


def table(kind, *, target=TARGET, **more):
    """Teams and numbers that decide one of the outputs; the others follow x1 and x2."""
    label = np.stack([X[:, 1] + X[:, 4], target, X[:, 2] - X[:, 5]], axis=1)
    label = label + 0.3 * np.random.default_rng(9).normal(size=label.shape)
    label = label.tolist() if kind == "three outputs" else label[:, 1]
    team = np.array(["north", "east", "south", "west"])[TEAM]
    return table_of(X, label, years=YEARS, team=team, **more)


def moved_in(frame, first, last):
    """The labels of a stretch are those of other rows there."""
    places = np.arange(ROWS)
    places[first:last] = np.random.default_rng(0).permutation(places[first:last])
    return frame.with_columns(label=frame["label"][places])


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.mark.parametrize("judge", [check_label_alignment, check_lost_values, check_telling_columns])
def test_healthy_labels_pass(kind, judge, tmp_path):
    result = judge(subject_of(KINDS[kind], table(kind), tmp_path))
    assert result.outcome == "passed", result


def test_labels_of_other_rows_are_caught(kind, tmp_path):
    frame = moved_in(table(kind), 1200, 2400)
    result = check_label_alignment(subject_of(KINDS[kind], frame, tmp_path))
    assert result.outcome == "failed", result.measured
    assert "in file order" in result.measured


def by_month(task_type, frame, folder):
    """A subject whose split leaves neighbours together, and that holds all training rows."""
    day = np.datetime64("2025-01-01") + frame["row"].to_numpy() // 10
    dataset = dataset_of(frame.with_columns(day=day), folder, time="day")
    return Subject.prepare(
        lambda: task_type(task_type.Options(), dataset.snapshot.task_columns),
        dataset,
        SETTINGS.model_copy(update={"sample_rows": ROWS}),
        TrainingSection(seed=1, steps=50, global_batch_size=64),
    )


def late_in(frame, teams):
    """These teams count their rows from one: each label is that of their row before."""
    late = pl.col("label").shift(1).over("team")
    moved = pl.when(pl.col("team").is_in(teams)).then(late).otherwise(pl.col("label"))
    return frame.with_columns(label=moved).drop_nulls("label")


def test_labels_of_the_row_before_in_some_groups_are_caught(kind, tmp_path):
    frame = late_in(table(kind), ["east", "west"])
    result = check_label_alignment(by_month(KINDS[kind], frame, tmp_path))
    assert (result.outcome, "east, west" in result.measured) == ("failed", True), result.measured


def test_groups_whose_labels_nothing_predicts_pass(kind, tmp_path):
    frame = table(kind)
    noise = frame["label"].shuffle(seed=3)
    mixed = pl.when(pl.col("team") == "east").then(noise).otherwise(pl.col("label"))
    subject = by_month(KINDS[kind], frame.with_columns(label=mixed), tmp_path)
    assert check_label_alignment(subject).outcome == "passed"


def test_columns_that_weigh_rows_are_not_lost(tmp_path):
    result = check_lost_values(subject_of(WeighedByTeam, table("rate"), tmp_path))
    assert result.outcome == "passed", result


def test_a_column_that_is_lost_is_caught(kind, tmp_path):
    result = check_lost_values(subject_of(FORGETFUL[kind], table(kind), tmp_path))
    assert (result.outcome, "team" in result.measured) != ("passed", False), result


def test_a_copy_of_one_label_is_caught(kind, tmp_path):
    frame = table(kind)
    place = pl.col("label").list.get(1) if kind == "three outputs" else pl.col("label")
    frame = frame.with_columns(invoiced=place * 1.2)
    result = check_telling_columns(subject_of(KINDS[kind], frame, tmp_path))
    assert (result.outcome, "invoiced" in result.measured) == ("failed", True), result


def test_weights_beside_the_label_may_be_features(tmp_path):
    result = check_telling_columns(subject_of(Rate, table("rate"), tmp_path))
    assert result.outcome == "passed", result
