from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from perennial.contracts.data import DataSection, SplitSection, TaskColumns
from perennial.contracts.errors import BadDataError
from perennial.contracts.gate import BlockPerformance
from perennial.contracts.monitoring import WindowDrift
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.detect_drift.performance import judge_losses, loss_limit, window_losses
from perennial.tasks.tabular import TabularOptions, TabularRegression

TRIGGERS = TriggersSection(min_labelled_rows=100)
START = datetime(2024, 1, 4)


def held_out(*losses, rows=200):
    return [
        BlockPerformance(start=START + timedelta(days=7 * i), rows=rows, loss=loss)
        for i, loss in enumerate(losses)
    ]


def window(index=0, rows=200):
    start = START + timedelta(days=7 * index)
    return WindowDrift(
        start=start, end=start + timedelta(days=7), rows=rows, max_z_score=0.0, threshold=3.0,
        columns=(), alarmed=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "limit"),
    [
        ([0.5] * 10, 0.525),  # no spread: the relevant rise of 5 % decides
        ([0.4, 0.6] * 50, 0.5 + 3 * 0.1005),  # many blocks: three standard deviations
        ([0.4, 0.5, 0.6], 0.5 + 2.92 * 0.1 * np.sqrt(4 / 3)),  # few: Student's wider tails
        ([-1.0, -1.0, -1.0], -0.95),  # a negative loss decays upwards, too
    ],
    ids=["floor", "spread", "few", "negative"],
)
def test_limit_of_the_loss(losses, limit):
    assert loss_limit(held_out(*losses), TRIGGERS).limit == pytest.approx(limit, rel=0.01)


def test_too_few_or_thin_held_out_blocks_give_no_limit():
    assert loss_limit([], TRIGGERS) is None
    assert loss_limit(held_out(0.5, 0.6), TRIGGERS) is None
    mixed = [*held_out(0.5, 0.6, 0.5), *held_out(9.0, rows=20)]
    assert loss_limit(mixed, TRIGGERS).blocks == 3


@pytest.mark.parametrize(
    ("loss", "rows", "judged", "decayed"),
    [
        (0.55, 200, True, False),
        (0.90, 200, True, True),
        (0.90, 99, False, False),  # fewer than min_labelled_rows
        (0.90, 159, False, False),  # fewer than min_label_coverage
        (0.90, 160, True, True),
        (0.10, 200, True, False),  # better is not decay
    ],
)
def test_a_window_needs_labels_enough_for_a_verdict(loss, rows, judged, decayed):
    limit = loss_limit(held_out(*[0.4, 0.5, 0.6] * 4), TRIGGERS)
    measured = [BlockPerformance(start=START, rows=rows, loss=loss)]
    (found,) = judge_losses([window()], measured, limit, TRIGGERS)
    assert found.loss == loss
    assert (found.loss_z_score is not None, found.decayed) == (judged, decayed)


def test_without_labels_or_limit_there_is_no_verdict():
    limit = loss_limit(held_out(0.4, 0.5, 0.6), TRIGGERS)
    (unlabelled,) = judge_losses([window()], [], limit, TRIGGERS)
    assert unlabelled.loss is None
    measured = [BlockPerformance(start=START, rows=200, loss=9.0)]
    (unlimited,) = judge_losses([window()], measured, None, TRIGGERS)
    assert (unlimited.loss, unlimited.decayed) == (9.0, False)


class Mean(TabularRegression):
    """Predicts the training mean: its loss is the squared distance in standard deviations."""

    def build_model(self):
        model = super().build_model()
        for parameter in model.parameters():
            parameter.data.zero_()
        return model


def mean_task():
    task = Mean(TabularOptions(), TaskColumns(label="y", features={"x": "Float64"}))
    task.fit(pl.LazyFrame({"x": [0.0, 1.0], "y": [-1.0, 1.0]}))
    return task, task.build_model()


def snapshot():
    return Snapshot(
        data=DataSection(uri="d", label="y", time="t"), split=SplitSection(), files=(),
        columns={}, rows=0, split_rows={},
    )  # fmt: skip


def rows_at(moments, labels, **changes):
    columns = {"t": moments, "x": [0.0] * len(labels), "y": labels} | changes
    return pl.LazyFrame(columns, schema_overrides={"y": pl.Float64})


@pytest.mark.parametrize(
    "zone", [None, "UTC", "America/New_York"], ids=["naive", "utc", "elsewhere"]
)
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_mean_loss_of_the_labelled_rows_of_each_window(zone, unit):
    week = timedelta(days=7)
    second = timedelta(seconds=1)
    moments = [
        START - second,  # before every window
        START,
        START + week - second,
        START + week,  # of the second window
        START + week + second,  # without a label
        START + 3 * week,  # between windows
        START + 4 * week,
        START + 5 * week,  # after every window
    ]
    rows = rows_at(moments, [9.0, 1.0, 3.0, 2.0, None, 9.0, 4.0, 9.0])
    rows = rows.with_columns(pl.col("t").cast(pl.Datetime(unit)))
    if zone is not None:
        rows = rows.with_columns(pl.col("t").dt.replace_time_zone(zone))
    windows = [window(i) for i in (0, 1, 2, 4)]
    found = window_losses(*mean_task(), rows, snapshot(), windows)
    assert [(part.start, part.rows, part.loss) for part in found] == [
        (windows[0].start, 2, 5.0),
        (windows[1].start, 1, 4.0),
        (windows[3].start, 1, 16.0),
    ]


def test_not_a_number_is_a_missing_label():
    rows = rows_at([START, START], [1.0, float("nan")])
    (found,) = window_losses(*mean_task(), rows, snapshot(), [window()])
    assert (found.rows, found.loss) == (1, 1.0)


def test_an_infinite_loss_is_an_error_that_names_the_block():
    rows = rows_at([START], [float("inf")])
    with pytest.raises(BadDataError, match="2024-01-04"):
        window_losses(*mean_task(), rows, snapshot(), [window()])
