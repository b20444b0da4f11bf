"""Labels of the newest rows that are not known yet, and classes that are rare for a while."""

import numpy as np
import polars as pl
import pytest

from mixed_numbers import ThreeAmounts, TwoClasses
from other_styles import dataset_of, numbers_table, table_of
from perennial.check_skeleton.checks.data.labels.label_alignment import check_label_alignment
from perennial.check_skeleton.checks.data.labels.unripe_labels import describe_unripe_labels
from perennial.engine.config.training import TrainingSection
from skeleton_tables import SETTINGS, prepared

ROWS = 6000
X, SCORE = numbers_table(ROWS)
DAY = np.arange(ROWS) // 15
LEAVES = (np.quantile(SCORE, 0.8) < SCORE).astype(int)
EARLY = np.random.default_rng(4).random(ROWS)


def table(label, day=DAY):
    return table_of(X, label, day=np.datetime64("2025-01-01") + day)


class OneAmount(ThreeAmounts):
    outputs = 1


class TwoAmounts(ThreeAmounts):
    outputs = 2


def subject_of(frame, folder, task_type=TwoClasses, *, time="day", **data):
    dataset = dataset_of(frame, folder, time=time, **data)
    settings = SETTINGS.model_copy(update={"sample_rows": ROWS})
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    return prepared(task_type, dataset, settings=settings, training=training)


def counted_before(days):
    """Who leaves within so many days, as far as is known on the last day."""
    return np.where(EARLY * days < DAY.max() - DAY, LEAVES, 0)


BUGS = {
    "a window of sixty days": table(counted_before(60)),
    "a window of three months": table(counted_before(90)),
    "absent in the newest rows": table(np.where(DAY > 360, 0, LEAVES)),
    "written as the positive class": table(1 - counted_before(60)),
    "in a file of another order": table(counted_before(60)).sample(
        fraction=1.0, shuffle=True, seed=1
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_labels_that_are_not_known_yet_fail(bug, tmp_path):
    result = check_label_alignment(subject_of(BUGS[bug], tmp_path))
    assert (result.outcome, "newest" in result.measured) == ("failed", True), result.measured


SEASON = np.sin(DAY / 400 * 2 * np.pi * 2.2)
HEALTHY = {
    "as it is": table(LEAVES),
    "half as many at the end": table(np.where((DAY > 340) & (EARLY < 0.5), 0, LEAVES)),
    "a season": table(np.where(SEASON + EARLY < 0.2, 0, LEAVES)),
    "bursts": table(np.where(DAY // 40 % 2 == 1, 0, LEAVES)),
    "sorted by label within a month": table(LEAVES, DAY // 40 * 40).sort(
        "day", "label", descending=[False, True]
    ),
    "few rows of a class": table(np.where(EARLY < 0.9, 0, LEAVES)),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_classes_that_come_and_go_pass(case, tmp_path):
    found = describe_unripe_labels(subject_of(HEALTHY[case], tmp_path))
    assert not found


def test_without_a_time_there_is_no_newest_row(tmp_path):
    frame = BUGS["a window of sixty days"].with_columns(day=pl.lit(0))
    assert not describe_unripe_labels(subject_of(frame, tmp_path, time=None))


AGE = (DAY.max() - DAY).astype(float)
LIFE = np.random.default_rng(5).weibull(2.0, ROWS) * 150
ENDED = (LIFE <= AGE).astype(float)
FOLLOWED = np.minimum(LIFE, AGE)


def test_ends_of_lives_that_are_followed_for_a_shorter_time_are_known(tmp_path):
    frame = table(np.stack([FOLLOWED, ENDED], axis=1).tolist())
    assert not describe_unripe_labels(subject_of(frame, tmp_path, TwoAmounts))


def test_the_time_that_a_life_was_followed_may_be_a_column(tmp_path):
    frame = table(ENDED).with_columns(days=FOLLOWED)
    features = tuple(f"x{i}" for i in range(6))
    assert not describe_unripe_labels(subject_of(frame, tmp_path, OneAmount, features=features))


@pytest.mark.parametrize("beside", [EARLY * 9, LIFE], ids=["an amount", "the life to come"])
def test_ends_beside_an_amount_that_does_not_depend_on_the_age_fail(beside, tmp_path):
    frame = table(np.stack([beside, ENDED], axis=1).tolist())
    assert "newest" in describe_unripe_labels(subject_of(frame, tmp_path, TwoAmounts))
