"""A group that pays for a better average is found, and healthy challengers are left alone."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from perennial.contracts.errors import PerennialError
from perennial.gate import slices as slicing
from perennial.gate.comparison import Contender, compare
from perennial.gate.config import GateSection
from perennial.gate.slices import (
    Excess,
    compare_slices,
    cut_column,
    holm,
    propose,
    row_losses,
    undefined_slices,
)
from rivals import contenders, match_of

DECLARED = GateSection(slices=("group",), slice_min_rows=20)


def worsened(contender, selected):
    predictions = np.where(selected, 1 - contender.scored.predictions, contender.scored.predictions)
    return Contender(contender.task, replace(contender.scored, predictions=predictions))


def test_a_slice_that_regresses_is_found_and_the_others_are_not_blamed(task):
    champion, _ = contenders(task, np.random.default_rng(0), days=60)
    in_b = (champion.scored.rows["group"] == "b").to_numpy()
    slices = compare_slices(match_of(worsened(champion, in_b), champion), "roc_auc", DECLARED)
    assert [(entry.value, entry.regressed) for entry in slices] == [("a", False), ("b", True)]
    assert slices[1].improvement.estimate < -0.2
    assert slices[1].rows == in_b.sum()


def test_a_regression_within_the_limit_is_allowed(task):
    champion, _ = contenders(task, np.random.default_rng(0), days=60)
    everywhere = np.ones(len(champion.scored.labels), dtype=bool)
    match = match_of(worsened(champion, everywhere), champion)
    slices = compare_slices(
        match, "roc_auc", DECLARED.model_copy(update={"slice_max_regression": 0.99})
    )
    assert not any(entry.regressed for entry in slices)


def test_small_slices_are_left_out(task):
    champion, other = contenders(task, np.random.default_rng(0))
    match = match_of(other, champion)
    assert (
        compare_slices(match, "roc_auc", DECLARED.model_copy(update={"slice_min_rows": 10_000}))
        == ()
    )
    (note,) = undefined_slices(
        match, "roc_auc", DECLARED.model_copy(update={"slice_min_rows": 10_000})
    )
    assert note == "no slice of group is judged: none of its values has 10,000 test rows"


def test_a_slice_of_a_single_day_is_skipped_with_a_note(task):
    champion, other = contenders(task, np.random.default_rng(0), days=20)
    match = match_of(other, champion)
    on_day = np.where(match.blocks.index == 3, "b", "a")
    rows = champion.scored.rows.with_columns(group=pl.Series(on_day))
    pair = [replace(each, scored=replace(each.scored, rows=rows)) for each in (other, champion)]
    match = match_of(*pair)
    lenient = DECLARED.model_copy(update={"slice_min_rows": 1})
    assert [entry.value for entry in compare_slices(match, "log_loss", lenient)] == ["a"]
    (note,) = undefined_slices(match, "log_loss", lenient)
    assert note == "the slice group = b is not judged: its rows are in a single day"


def test_many_slices_raise_no_more_false_alarms_than_one(task):
    random, alarms, trials = np.random.default_rng(1), 0, 20
    for _ in range(trials):
        challenger, champion = contenders(task, random, days=15)
        number = random.integers(0, 5, len(champion.scored.labels)).astype(str)
        rows = champion.scored.rows.with_columns(slice=pl.Series(number))
        pair = [
            replace(each, scored=replace(each.scored, rows=rows)) for each in (challenger, champion)
        ]
        match = match_of(*pair, resamples=200)
        slices = compare_slices(
            match, "log_loss", DECLARED.model_copy(update={"slices": ("slice",)})
        )
        assert len(slices) == 5
        alarms += any(entry.regressed for entry in slices)
    assert alarms / trials <= 0.1


def test_missing_values_are_a_slice(task):
    champion, other = contenders(task, np.random.default_rng(0))
    rows = champion.scored.rows.with_columns(
        slice=pl.when(pl.col("group") == "a").then(None).otherwise(pl.lit(1))
    )
    pair = [replace(each, scored=replace(each.scored, rows=rows)) for each in (champion, other)]
    slices = compare_slices(
        match_of(*pair), "roc_auc", DECLARED.model_copy(update={"slices": ("slice",)})
    )
    assert [entry.value for entry in slices] == ["(missing)", "1"]


SEARCHED = ("carrier", "distance", "hour", "noise")
HIDDEN = GateSection(slice_min_rows=100)


def travellers(task, random, *, errors, harmed=lambda rows: np.zeros(rows.height, dtype=bool)):
    """Challenger and champion on 60 days of rows with columns that nobody declared."""
    challenger, champion = contenders(task, random, errors, days=60, rows_per_day=100)
    frame = champion.scored.rows
    rows = frame.with_columns(
        carrier=pl.Series(random.choice(list("abcdef"), frame.height)),
        distance=pl.Series(random.gamma(2.0, 400.0, frame.height)),
        hour=pl.Series(random.integers(0, 24, frame.height)),
        noise=pl.Series(random.normal(size=frame.height)),
    )
    wrong, ours = harmed(rows), challenger.scored
    predictions = np.where(wrong, 1 - ours.predictions, ours.predictions)
    worsened_scores = replace(ours, predictions=predictions, rows=rows)
    return (
        Contender(task, worsened_scores),
        Contender(task, replace(champion.scored, rows=rows)),
    )


def long_flights_of_c(rows):
    return ((rows["carrier"] == "c") & (rows["distance"] > 800)).to_numpy()


def found_by(task, random, gate=HIDDEN, metric="log_loss", **kinds):
    match = match_of(*travellers(task, random, **kinds))
    return compare_slices(match, metric, gate, SEARCHED), match


@pytest.mark.parametrize("metric", ["log_loss", "roc_auc"])
def test_a_hidden_group_that_pays_for_a_better_average_is_caught(task, metric):
    random, caught = np.random.default_rng(3), 0
    for _ in range(10):
        slices, match = found_by(
            task, random, metric=metric, errors=(0.1, 1.0), harmed=long_flights_of_c
        )
        improvement = compare(match, (metric,))[0].improvement
        assert improvement.low > 0, "the average is significantly better"
        caught += any(entry.regressed and "carrier = c" in entry.value for entry in slices)
    assert caught >= 9


def test_a_found_slice_is_evaluated_on_days_that_the_search_did_not_see(task):
    slices, match = found_by(
        task, np.random.default_rng(3), errors=(0.1, 1.0), harmed=long_flights_of_c
    )
    worst = next(entry for entry in slices if entry.regressed)
    assert worst.found
    assert worst.column == ""
    frame = match.champion.scored.rows
    matching = long_flights_of_c(frame).sum()
    assert worst.rows == pytest.approx(matching / 2, rel=0.5)


@pytest.mark.parametrize("trials", [30, pytest.param(400, marks=pytest.mark.full)])
@pytest.mark.parametrize("errors", [(1.0, 1.0), (0.5, 1.0)], ids=["equal", "better"])
def test_healthy_challengers_are_rarely_refused(task, errors, trials):
    random, refused = np.random.default_rng(6), 0
    for _ in range(trials):
        slices, _ = found_by(task, random, errors=errors)
        refused += any(entry.regressed for entry in slices)
    assert refused / trials <= 0.05


def test_judging_on_the_searched_days_would_refuse_equal_models(task, monkeypatch):
    """The same search without the two halves, to show what they are for."""
    random, honest, biased = np.random.default_rng(6), [], []
    for _ in range(15):
        slices, match = found_by(
            task, random, HIDDEN.model_copy(update={"hidden_slice_tolerance": 0.0}), errors=(1, 1)
        )
        honest += [entry.improvement.estimate for entry in slices]
        theirs = row_losses(match.champion)
        excess = row_losses(match.challenger) - theirs
        harm = Excess(excess, np.ones_like(excess), match.blocks, 100)
        everything = np.ones(len(excess), dtype=bool)
        proposed = propose(match.champion.scored.rows, SEARCHED, harm, everything)
        biased += [-excess[each.rows].mean() for each in proposed]
    assert np.mean(honest) > 0.5 * np.mean(biased) > np.mean(biased), "both are negative"


def test_the_search_can_be_left_out_and_needs_enough_days(task):
    random = np.random.default_rng(3)
    off = HIDDEN.model_copy(update={"hidden_slices": "off"})
    assert found_by(task, random, off, errors=(1, 1))[0] == ()
    many = HIDDEN.model_copy(update={"min_test_blocks": 31})
    assert found_by(task, random, many, errors=(1, 1))[0] == (), "30 days are left to judge"


def test_a_column_is_cut_into_values_or_quarters_and_missing_rows_are_a_group():
    rows = np.ones(8, dtype=bool)
    numbers = pl.Series("x", [*map(float, range(100)), None])
    cut = cut_column(numbers, np.ones(101, dtype=bool))
    assert cut.names == (
        "x ≤ 24.75",
        "24.75 < x ≤ 49.5",
        "49.5 < x ≤ 74.25",
        "x > 74.25",
        "x missing",
    )
    assert np.bincount(cut.codes).tolist() == [25, 25, 25, 25, 1]
    texts = cut_column(pl.Series("t", ["a", "b", None, "a", "b", "b", "b", "a"]), rows)
    assert sorted(texts.names) == ["t = (missing)", "t = a", "t = b"]
    assert cut_column(pl.Series("t", ["a"] * 8), rows) is None


@pytest.mark.parametrize(
    ("first", "width"), [(20130101.0, 530.0), (1013.0, 0.2), (1.7e9, 1e6), (0.0, 1.0), (-50.0, 1e5)]
)
def test_quarters_of_any_range_are_named_by_what_tells_them_apart(first, width):
    values = first + width * np.linspace(0.0, 1.0, 101)
    cut = cut_column(pl.Series("x", values), np.ones(101, dtype=bool))
    assert len(set(cut.names)) == 5
    shown = [float(name.rpartition(" ")[2]) for name in cut.names[:3]]
    assert shown == pytest.approx(values[[25, 50, 75]], abs=0.0026 * width, rel=0)
    assert max(map(len, cut.names)) < 40


def test_holm_rejects_step_by_step():
    assert holm([0.01, 0.04, 0.03], 0.05) == [True, False, False]
    assert holm([0.01, 0.04, 0.02], 0.05) == [True, True, True]
    assert holm([], 0.05) == []


def test_a_slice_of_a_single_class_is_skipped_with_a_note(task):
    champion, other = contenders(task, np.random.default_rng(0), days=20)
    in_b = (champion.scored.rows["group"] == "b").to_numpy()
    labels = np.where(in_b, 0.0, champion.scored.labels)
    pair = [replace(each, scored=replace(each.scored, labels=labels)) for each in (other, champion)]
    match = match_of(*pair, resamples=200)
    assert [entry.value for entry in compare_slices(match, "roc_auc", DECLARED)] == ["a"]
    (note,) = undefined_slices(match, "roc_auc", DECLARED)
    assert note.startswith("the slice group = b is not judged: roc_auc is undefined on these")
    assert undefined_slices(match, "log_loss", DECLARED) == ()


def test_of_many_rows_evenly_spaced_ones_are_searched_and_all_are_judged(task, monkeypatch):
    """6,000 rows, of which 3,000 are searched."""
    kinds = {"errors": (0.1, 1.0), "harmed": long_flights_of_c}
    monkeypatch.setattr(slicing, "EXACT_ROWS", 3_000)
    found, match = found_by(task, np.random.default_rng(3), **kinds)
    worst = next(entry for entry in found if entry.regressed)
    assert "carrier = c" in worst.value
    frame = match.champion.scored.rows
    assert worst.rows == pytest.approx(long_flights_of_c(frame).sum() / 2, rel=0.5)


@pytest.mark.parametrize("kind", ["List(Int64)", "Array(Float32, shape=(2,))"])
def test_a_slice_of_lists_is_refused_before_anything_is_scored(kind):
    """It ended the gate with an error of polars, after the training."""
    gate = GateSection(slices=("tags", "region"))
    with pytest.raises(
        PerennialError, match=r"gate.slices names \['tags'\], whose values are lists"
    ):
        gate.require_slices({"tags": kind, "region": "String"})
    gate.require_slices({"tags": "Struct({'a': List(Int64)})", "region": "String"})
