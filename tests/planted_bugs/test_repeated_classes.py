"""Classes whose rows are repeated before a split by time, and rows that repeat by nature."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from mixed_numbers import TwoClasses, subject_of
from other_styles import numbers_table
from perennial.check_skeleton.checks.data.leaks.repeated_classes import describe_repeated_class
from workshop import results_of

ROWS = 1200
RANDOM = np.random.default_rng(8)
X, SCORE = numbers_table(rows=ROWS)
DAYS = np.sort(RANDOM.uniform(0, 300, ROWS))


def table(label):
    return pl.DataFrame(
        {
            "at": [datetime(2024, 1, 1) + timedelta(days=float(day)) for day in DAYS],
            "x": X[:, 0].round(3),
            "y": X[:, 1].round(1),
            "kind": RANDOM.integers(0, 4, ROWS),
            "label": label,
        }
    )


RARE = table((SCORE > 1.2).astype(int))
THREE = table(np.digitize(SCORE, [0.5, 1.8]))


def numbered(frame, seed=1):
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=seed)
    return shuffled.with_columns(row=pl.int_range(pl.len()))


def repeated(frame, times, chosen):
    return pl.concat([frame, *[frame.filter(chosen)] * (times - 1)])


class Three(TwoClasses):
    kind = "multiclass"

    def build_model(self):
        raise NotImplementedError


@pytest.mark.parametrize("times", [2, 4])
@pytest.mark.parametrize("time", ["at", None])
def test_a_rare_class_that_was_repeated_before_the_split_fails(times, time, tmp_path):
    frame = numbered(repeated(RARE, times, pl.col("label") == 1))
    found = results_of(subject_of(TwoClasses, frame, tmp_path, time=time), "split_overlap")
    assert found["split_overlap"].outcome == "failed"
    assert "oversampl" in found["split_overlap"].hint


def test_several_classes_that_are_drawn_until_all_are_as_frequent_are_found(tmp_path):
    classes = [THREE.filter(pl.col("label") == each) for each in range(3)]
    most = max(map(len, classes))
    filled = [
        pl.concat([each, each.sample(most - len(each), with_replacement=True, seed=2)])
        for each in classes
    ]
    frame = numbered(pl.concat(filled))
    assert "label 1, 2" in describe_repeated_class(subject_of(Three, frame, tmp_path, time="at"))


@pytest.mark.parametrize("frame", [
    RARE,
    # Rows of a class that agree by nature: few values, or one minute for all of an attack.
    repeated(RARE, 3, pl.col("label") == 1).drop("at", "x"),
    repeated(RARE, 3, pl.col("label") == 1).with_columns(
        at=pl.col("at").dt.truncate("1mo"), x=pl.col("x").round(0)),
    RARE.with_columns(
        at=pl.when(pl.col("label") == 1).then(datetime(2024, 6, 1)).otherwise("at"),
        x=pl.when(pl.col("label") == 1).then(0.0).otherwise("x"), y=0.0, kind=0),
    # Rows of both classes that a join doubles, and single rows that came twice.
    pl.concat([RARE, RARE]),
    pl.concat([RARE, RARE.sample(40, seed=1)]),
    # Copies that were changed, as augmented ones are.
    pl.concat([RARE, RARE.filter(pl.col("label") == 1).with_columns(x=pl.col("x") + 0.01)]),
])  # fmt: skip
def test_other_repeats_are_not_taken_for_oversampling(frame, tmp_path):
    assert not describe_repeated_class(subject_of(TwoClasses, numbered(frame), tmp_path))
