"""Label imbalance of the test days is removed, and bounds hold as often as stated."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from perennial.contracts.data import Split
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.resampling import Blocks
from perennial.engine.evaluation.scoring import Scored
from perennial.gate.comparison import (
    Conditions,
    Contender,
    compare,
    conditions_of,
    estimate_of,
)
from rivals import match_of
from small_models import write_snapshot

DAYS, TESTED = 60, 18


def estimates(random, trials, *, slope, days=TESTED, conditions=True):
    """Improvements with mean 0 that follow the day's label; the last days are tested."""
    blocks = Blocks(np.arange(days), days, "day")
    draws = blocks.draws(400)
    for _ in range(trials):
        label = 0.3 + 0.1 * random.normal(size=DAYS)
        improvement = slope * (label - 0.3) + 0.02 * random.normal(size=DAYS)
        tested = slice(-days, None)
        known = Conditions(label[tested], float(label.mean()), days / DAYS)
        mean = float(improvement[tested].mean())
        drawn = (draws @ improvement[tested] / days, improvement[tested] - mean)
        yield estimate_of(mean, drawn, blocks, draws, known if conditions else None)


@pytest.mark.parametrize("trials", [300, pytest.param(3000, marks=pytest.mark.full)])
@pytest.mark.parametrize("slope", [0.0, 0.5])
def test_bounds_hold_at_their_stated_rate(slope, trials):
    missed = sum(
        found.interval(0.95).low > 0
        for found in estimates(np.random.default_rng(2), trials, slope=slope)
    )
    assert missed / trials <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / trials)


def test_what_follows_the_label_is_known_more_exactly():
    ours, plain = (
        np.mean([e.error for e in estimates(np.random.default_rng(1), 60, slope=0.5, conditions=c)])
        for c in (True, False)
    )
    assert ours < 0.75 * plain


def test_few_days_are_left_as_they_are():
    for found in estimates(np.random.default_rng(1), 5, slope=0.5, days=9):
        assert found.luck == 0.0
        assert 4 < found.degrees <= 9 - 1


def test_the_part_that_was_luck_is_recorded():
    for found in estimates(np.random.default_rng(1), 5, slope=0.5):
        assert found.luck != 0.0
        assert 9 < found.degrees <= TESTED - 2


def test_a_constant_label_is_not_judged():
    blocks = Blocks(np.arange(20), 20, "day")
    draws = blocks.draws(200)
    days = np.random.default_rng(0).normal(size=20)
    alike = Conditions(np.ones(20), 0.5, 0.5)
    drawn = (draws @ days / 20, days - days.mean())
    assert estimate_of(0.1, drawn, blocks, draws, alike).luck == 0.0


def days_of_labels(labels_by_day):
    rows = [
        {"row": 10 * day + number, "time": datetime(2025, 1, 1) + timedelta(days=day, hours=number),
         "signal": 0.0, "noise": 0.0, "region": "a", "label": float(label)}
        for day, label in enumerate(labels_by_day) for number in range(10)
    ]  # fmt: skip
    return pl.DataFrame(rows)


def test_the_periods_labels_are_those_of_all_their_days_and_of_no_other_period(tmp_path):
    # 31 days of January and 28 of February, the last quarter of each is tested.
    january, february = [1.0] * 20 + [3.0] * 11, [10.0] * 28
    snapshot = write_snapshot(tmp_path / "data", days_of_labels(january + february))
    dataset = Dataset(snapshot)
    rows = dataset.collect(dataset.scan(Split.TEST)).select("time", "label")
    tested = rows["time"].dt.date().unique().dt.month().to_list()
    found = conditions_of(dataset, rows, "regression")
    shares = [tested.count(month) / len(tested) for month in (1, 2)]
    assert found.expected == pytest.approx(shares[0] * np.mean(january) + shares[1] * 10.0)
    assert found.share == pytest.approx(len(tested) / 59)
    assert len(found.labels) == rows.height


def test_labels_that_do_not_count_have_no_conditions(tmp_path):
    frame = days_of_labels([0.0] * 31)
    words = frame.with_columns(pl.lit("yes").alias("label"))
    for name, rows, kind, split in (
        ("text", words, "binary", {}),
        ("classes", frame, "multiclass", {}),
        ("hash", frame, "binary", {"method": "hash"}),
    ):
        dataset = Dataset(write_snapshot(tmp_path / name, rows, **split))
        assert conditions_of(dataset, rows.select("time", "label"), kind) is None


def test_the_comparison_leaves_luck_out_of_the_improvement_and_not_out_of_the_figures(task):
    random, days, per_day = np.random.default_rng(0), 20, 30
    late = np.repeat(random.normal(0.4, 0.15, days).clip(0.05, 0.95), per_day)
    labels = (random.random(days * per_day) < late).astype(float)
    frame = pl.DataFrame(
        {"label": labels, "day": np.repeat(np.arange(days), per_day)}
    ).with_columns(day=pl.lit(datetime(2025, 1, 1)) + pl.duration(days=pl.col("day")))

    def constant(share):
        predictions = np.full(len(labels), share)
        losses = -np.log(np.where(labels == 1, share, 1 - share))
        return Contender(task, Scored(losses, predictions, labels, np.ones(len(labels)), frame))

    match = match_of(constant(0.45), constant(0.35))
    # Over the whole periods 0.35 is late: there, the champion is better.
    usual = Conditions(labels, 0.35, 0.3)
    known = type(match)(match.challenger, match.champion, match.blocks, match.draws, 0.95, usual)
    found, plain = (compare(each, ("log_loss",))[0] for each in (known, match))
    assert found.challenger == plain.challenger
    assert plain.improvement.estimate == pytest.approx(
        found.improvement.estimate + found.luck, abs=1e-12
    )
    truth = sum(
        part * (np.log(ours) - np.log(theirs))
        for part, ours, theirs in ((0.35, 0.45, 0.35), (0.65, 0.55, 0.65))
    )
    assert found.improvement.estimate == pytest.approx(truth, abs=1e-6)
    assert found.improvement.estimate < 0
