"""Confirmation: intervals of finalists against the baseline, on rows that nothing was chosen by."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.study_decisions import Spread, made_candidates, made_rows
from perennial.contracts.gate import Interval
from perennial.studies.analysis.confirmation import (
    compare_candidates,
    difference_of,
    name_values,
    simultaneous,
)

ROWS = made_rows(40)


def compared(true, seed=0, least=0.0, rows=ROWS, seeds=3, **spread):
    baseline, *rivals = made_candidates(
        true, rows, np.random.default_rng(seed), seeds=seeds, spread=Spread(**spread)
    )
    pairs = [(rival, baseline) for rival in rivals]
    return compare_candidates(pairs, rows, sign=1.0, confidence=0.95, least=least)


def test_a_planted_improvement_is_adopted():
    (found,) = compared([0.0, 5.0], between_seeds=0.1)
    assert found.decision == "adopt"
    assert found.improvement.low < 5.0 < found.improvement.high
    assert "improves on the baseline by" in found.text


def test_a_worse_finalist_is_rejected():
    (found,) = compared([0.0, -5.0], between_seeds=0.1)
    assert found.decision == "reject"


def test_no_difference_is_inconclusive_and_names_what_would_settle_it():
    (found,) = compared([0.0, 0.3], between_seeds=2.0, between_blocks=0.1)
    assert found.decision == "inconclusive"
    assert found.confirmations_needed > 3
    assert "more confirmations would settle" in found.text


def test_what_is_certainly_too_small_is_rejected():
    (found,) = compared([0.0, 0.1], least=3.0, between_seeds=0.1)
    assert found.improvement.low < 0.0 < found.improvement.high
    assert found.decision == "reject"


def test_an_improvement_below_the_least_one_is_not_adopted():
    (found,) = compared([0.0, 2.0], least=2.0, between_seeds=0.1)
    assert found.decision == "inconclusive"


def test_an_estimate_near_the_least_improvement_asks_for_no_further_confirmations():
    (found,) = compared([0.0, 2.0], least=2.0, between_seeds=0.1)
    assert found.confirmations_needed == 3
    assert "more confirmations" not in found.text


def test_of_a_minimized_metric_less_is_better():
    baseline, rival = made_candidates([0.0, -5.0], ROWS, np.random.default_rng(0))
    (found,) = compare_candidates([(rival, baseline)], ROWS, sign=-1.0, confidence=0.95)
    assert found.decision == "adopt"


def test_more_seeds_and_more_rows_narrow_the_interval():
    def width(seeds, blocks):
        found = [
            compared([0.0, 0.0], seed, rows=made_rows(blocks), seeds=seeds)[0] for seed in range(10)
        ]
        return np.mean([each.improvement.high - each.improvement.low for each in found])

    assert width(3, 40) > width(10, 40) > width(10, 400)


def test_rows_limit_what_seeds_can_settle():
    baseline, rival = made_candidates(
        [0, 0], ROWS, np.random.default_rng(0), spread=Spread(between_blocks=5.0)
    )
    difference = difference_of(rival, baseline, ROWS, 1.0)
    assert difference.confirmations_for(0.1, 0.95, 3) is None
    assert difference.confirmations_for(100.0, 0.95, 3) == 3


def test_equal_trainings_differ_by_nothing():
    baseline, _ = made_candidates([0, 0], ROWS, np.random.default_rng(0))
    copy = replace(baseline, trial=1)
    (found,) = compare_candidates([(copy, baseline)], ROWS, sign=1.0, confidence=0.95)
    assert found.improvement.estimate == 0.0
    assert found.decision == "inconclusive"


def test_a_finalist_that_diverges_with_a_fresh_seed_is_not_adopted():
    baseline, rival = made_candidates([0, 5], ROWS, np.random.default_rng(0))
    rival = replace(rival, diverged=1)
    (found,) = compare_candidates([(rival, baseline)], ROWS, sign=1.0, confidence=0.95)
    assert found.decision == "reject"
    assert "diverged in 1 of 4 confirmations" in found.text


def test_a_single_block_has_no_interval():
    (found,) = compared([0.0, 5.0], rows=made_rows(1))
    assert found.improvement is None
    assert found.decision == "inconclusive"


def test_two_seeds_that_err_on_different_rows_are_not_counted_twice():
    """Most of the difference between seeds on one test split is the split's."""
    alone = Spread(between_seeds=0.0, between_blocks=0.0, within=3.0)
    baseline, rival = made_candidates(
        [0, 0], ROWS, np.random.default_rng(0), seeds=20, spread=alone
    )
    difference = difference_of(rival, baseline, ROWS, 1.0)
    true = 3.0 * np.sqrt(2 / 20 / 40)
    assert difference.error == pytest.approx(true, rel=0.25)


@pytest.mark.parametrize(
    ("between_seeds", "within"), [(1.0, 0.1), (1.0, 3.0), (0.3, 3.0)], ids=["seeds", "both", "rows"]
)
def test_intervals_of_three_finalists_hold_together(between_seeds, within):
    """The whole simulation, of every budget, is `benchmarks/study_decisions.py`."""
    generator = np.random.default_rng(0)
    held = wrong = 0
    trials = 400
    for _ in range(trials):
        baseline, *rivals = made_candidates(
            [0.0, 0.0, 0.0, 0.0],
            ROWS,
            generator,
            spread=Spread(between_seeds=between_seeds, within=within),
        )
        pairs = [(rival, baseline) for rival in rivals]
        found = compare_candidates(pairs, ROWS, sign=1.0, confidence=0.95)
        intervals = [each.improvement for each in found]
        held += all(each.low <= 0.0 <= each.high for each in intervals)
        wrong += any(each.decision == "adopt" for each in found)
    assert 0.92 <= held / trials <= 0.99
    assert wrong / trials <= 0.05


def test_a_scientific_answer_is_one_sentence():
    (null,) = compared([0.0, 0.1], between_seeds=1.0, between_blocks=0.1)
    assert "relu and gelu: inconclusive, the difference is within ±" in name_values(
        "relu", "gelu", null, 0.0, 3
    )
    (clear,) = compared([0.0, 5.0], between_seeds=0.1)
    assert name_values("relu", "gelu", clear, 0.0, 3).startswith("relu is better than gelu, by ")
    (worse,) = compared([0.0, -5.0], between_seeds=0.1)
    assert name_values("relu", "gelu", worse, 0.0, 3).startswith("gelu is better than relu, by ")
    (same,) = compared([0.0, 0.0], between_seeds=0.1, least=3.0)
    assert "no difference worth 3" in name_values("relu", "gelu", same, 3.0, 3)
    alike = same.model_copy(update={"improvement": Interval(estimate=0.0, low=-0.0, high=0.0)})
    assert name_values("relu", "gelu", alike, 0.0, 3).endswith(
        "all confirmations are exactly alike"
    )


def test_a_value_that_diverges_is_not_the_better_one():
    baseline, rival = made_candidates(
        [0.0, 5.0], ROWS, np.random.default_rng(0), spread=Spread(between_seeds=0.1)
    )

    def answer(ours, theirs):
        (found,) = compare_candidates([(ours, theirs)], ROWS, sign=1.0, confidence=0.95, least=9.0)
        return found.is_clear, name_values("relu", "gelu", found, 9.0, 3)

    diverged = "relu and gelu: inconclusive, {} diverged in a confirmation"
    assert answer(replace(rival, diverged=1), baseline) == (False, diverged.format("relu"))
    assert answer(baseline, replace(rival, diverged=1)) == (False, diverged.format("gelu"))
    alike = replace(baseline, trial=1, diverged=1)
    assert answer(alike, baseline) == (False, diverged.format("relu"))
    is_clear, text = answer(rival, replace(baseline, diverged=1))
    assert is_clear
    assert text.startswith("relu is better than gelu, by ")


def test_the_confidence_of_several_intervals_together():
    assert simultaneous(0.95, 1) == 0.95
    assert simultaneous(0.95, 4) ** 4 == pytest.approx(0.95)
