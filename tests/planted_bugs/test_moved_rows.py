"""Labels that all belong to another row, and plates or batches whose labels are other wells'."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from mixed_numbers import Numbers, TwoClasses, subject_of
from other_styles import numbers_table
from workshop import results_of

ROWS, PLATES = 1440, 24
X, SCORE = numbers_table(rows=ROWS)
RANDOM = np.random.default_rng(12)
PLATE, WELL = np.divmod(np.arange(ROWS), ROWS // PLATES)
FEATURES = ("x0", "x1", "x2", "x3")
DAYS = [date(2024, 1, 1) + timedelta(days=each) for each in range(ROWS)]
WALK = np.cumsum(RANDOM.normal(size=ROWS))


def table(label, x=X, **more):
    columns = {f"x{place}": x[:, place] for place in range(4)}
    return pl.DataFrame({"row": range(ROWS), **columns, "label": label, **more})


def examine(frame, folder, task=Numbers, **data):
    subject = subject_of(task, frame, folder, features=FEATURES, **data)
    return results_of(subject, "label_alignment")["label_alignment"]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("task", [Numbers, TwoClasses])
def test_labels_that_are_some_rows_late_fail(steps, task, tmp_path):
    label = np.roll(SCORE if task is Numbers else (SCORE > 0).astype(int), steps)
    found = examine(table(label), tmp_path, task)
    assert found.outcome == "failed", found.measured
    assert "below by row" in found.measured
    assert "join labels" in found.hint


@pytest.mark.parametrize("frame", [
    table(np.roll(SCORE, -1)),  # what the row before was is often known
    table(np.roll(SCORE, 1), day=DAYS),
])  # fmt: skip
def test_rows_that_may_be_a_series_warn(frame, tmp_path):
    data = {"meta": ("day",)} if "day" in frame.columns else {}
    assert examine(frame, tmp_path, **data).outcome == "warned"


@pytest.mark.parametrize("frame", [
    table(SCORE), table(RANDOM.normal(size=ROWS)),
    # The change until the next row of a random walk, and a copy of the row before.
    table(np.append(np.diff(WALK), 0.0), np.stack([WALK, np.roll(WALK, 1), X[:, 0], X[:, 1]], 1)),
    table(np.roll(X[:, 0], -1)),
])  # fmt: skip
def test_labels_of_their_rows_and_of_chance_pass(frame, tmp_path):
    assert examine(frame, tmp_path).outcome in ("passed", "skipped")


def of_wells(order, plates):
    """The labels, of some plates in another order of wells."""
    label = SCORE.copy()
    for plate in plates:
        rows = np.flatnonzero(plate == PLATE)
        label[rows] = SCORE[rows[order]]
    return label


SIZE = ROWS // PLATES
BY_COLUMN = np.arange(SIZE).reshape(6, -1).T.ravel()


@pytest.mark.parametrize(("order", "plates"), [
    (BY_COLUMN, range(0, PLATES, 2)), (np.arange(SIZE)[::-1], [3, 7, 8, 20]),
    (RANDOM.permutation(SIZE), range(0, PLATES, 3)),
])  # fmt: skip
def test_plates_whose_labels_are_those_of_other_wells_warn(order, plates, tmp_path):
    frame = table(of_wells(order, plates), plate=PLATE, well=WELL)
    found = examine(frame, tmp_path, meta=("plate", "well"))
    assert found.outcome == "warned", found.measured
    assert "in rows of plate" in found.measured
    assert "by row and by column" in found.hint


ODD = PLATE % 2 == 1


@pytest.mark.parametrize(("label", "names"), [
    (SCORE, ("plate",)),
    # Another relation, weaker relations of all degrees, and one plate that is noise.
    (np.where(ODD, X[:, 1] - X[:, 0] + 0.2 * SCORE, SCORE), ("plate",)),
    (SCORE + RANDOM.gamma(0.6, 3.0, PLATES)[PLATE] * RANDOM.normal(size=ROWS), ("plate",)),
    (np.where(PLATE == 5, RANDOM.permutation(SCORE), SCORE), ("plate",)),
    # Plates of another kind, whose labels are small.
    (np.where(ODD, 0.3 * RANDOM.normal(size=ROWS), SCORE), ("plate",)),
])  # fmt: skip
def test_plates_that_differ_pass(label, names, tmp_path):
    found = examine(table(label, plate=PLATE), tmp_path, meta=names)
    assert "in rows of plate" not in found.measured


def test_days_without_a_signal_pass(tmp_path):
    days = [DAYS[each] for each in PLATE]
    frame = table(of_wells(RANDOM.permutation(SIZE), range(0, PLATES, 3)), day=days)
    assert examine(frame, tmp_path, meta=("day",)).outcome == "passed"


TUNER = RANDOM.integers(0, 5, ROWS)


@pytest.mark.parametrize(
    ("features", "outcome"), [(FEATURES, "failed"), ((*FEATURES, "tuner"), "warned")]
)
@pytest.mark.parametrize("task", [Numbers, TwoClasses])
def test_groups_with_turned_labels_fail_unless_a_feature_tells_them(
    features, outcome, task, tmp_path
):
    """Two of five tuners note corrections in place of errors."""
    score = np.where(np.isin(TUNER, [1, 3]), -SCORE, SCORE)
    label = score if task is Numbers else (score > 0).astype(int)
    frame = table(label, tuner=TUNER)
    subject = subject_of(task, frame, tmp_path, features=features, **(
        {"meta": ("tuner",)} if outcome == "failed" else {}
    ))  # fmt: skip
    found = results_of(subject, "label_alignment")["label_alignment"]
    assert found.outcome == outcome, found.measured
    assert "rows of tuner 1 and 3" in found.measured or "rows of tuner 1, 3" in found.measured


@pytest.mark.parametrize("label", [SCORE, SCORE * (1 + TUNER), SCORE * (TUNER != 1)])
def test_groups_with_other_scales_or_none_are_not_turned(label, tmp_path):
    found = examine(table(label, tuner=TUNER), tmp_path, meta=("tuner",))
    assert "correlate by -" not in found.measured
