"""The stated statistical power is the share of real improvements that the gate finds."""

import numpy as np
import pytest
from scipy.special import stdtrit

from perennial.contracts.gate import Comparison, Interval
from perennial.engine.evaluation.resampling import Blocks
from perennial.gate.config import GateSection
from perennial.gate.power import reach_line, reach_of

ANY = Interval(estimate=0.0, low=-1.0, high=1.0)


def blocks_of_days(count):
    return Blocks(np.arange(count), count, "day")


def comparison(error, blocks, fitted=0):
    return Comparison(
        metric="log_loss", challenger=0.4, champion=0.4, improvement=ANY,
        standard_error=error, degrees=blocks.count - 1.0 - fitted,
    )  # fmt: skip


def test_four_of_five_tests_find_what_is_called_detectable():
    random, days = np.random.default_rng(0), blocks_of_days(28)
    gate = GateSection(min_improvement=0.01)
    detectable = reach_of(gate, comparison(0.02, days), days).detectable
    trials = 4000
    # Errors of a Student distribution with the same degrees, as the interval assumes.
    error = 0.02 * np.sqrt(random.chisquare((days.count - 1), trials) / (days.count - 1))
    estimate = detectable + 0.02 * random.normal(size=trials)
    low = estimate - stdtrit((days.count - 1), gate.confidence) * error
    assert np.mean(low > 0.01) == pytest.approx(0.8, abs=0.03)


def test_the_days_that_it_names_are_the_fewest_that_suffice():
    days = blocks_of_days(9)
    gate = GateSection(min_improvement=0.002, worth_finding=0.03)
    found = reach_of(gate, comparison(0.03, days), days)
    assert not found.sufficient
    for count, sufficient in ((found.blocks_needed, True), (found.blocks_needed - 1, False)):
        planned = reach_of(gate, comparison(0.03, days), days, blocks_of_days(count))
        assert planned.sufficient is sufficient
        assert planned.blocks == count
    line = reach_line(found, "log_loss", "day")
    assert f"gate.worth_finding = 0.03 needs {found.blocks_needed}" in line


def test_it_names_no_fewer_days_than_count_as_independent():
    days, gate = blocks_of_days(9), GateSection(worth_finding=0.03)
    needed = reach_of(gate, comparison(0.012, days), days).blocks_needed
    assert needed == gate.min_effective_days
    fewer = gate.model_copy(update={"min_effective_days": 9.0})
    assert reach_of(fewer, comparison(0.012, days), days).blocks_needed < needed


def test_a_margin_counts_from_below_zero():
    days = blocks_of_days(28)
    lenient = GateSection(mode="non_inferior", margin=0.02, worth_finding=0.01)
    strict = GateSection(worth_finding=0.01)
    gap = [reach_of(gate, comparison(0.01, days), days).detectable for gate in (strict, lenient)]
    assert gap[0] - gap[1] == pytest.approx(0.02)


def test_what_no_number_of_days_finds_is_reported():
    days = blocks_of_days(9)
    gate = GateSection(min_improvement=0.002, worth_finding=0.00201)
    found = reach_of(gate, comparison(0.3, days), days)
    assert found.blocks_needed is None
    assert "no number of days" in reach_line(found, "log_loss", "day")


def test_without_a_stated_effect_only_what_can_be_found_is_reported():
    days = blocks_of_days(20)
    found = reach_of(GateSection(), comparison(0.01, days, fitted=1), days)
    assert found.sufficient
    assert reach_line(found, "log_loss", "day").startswith("20 test days detect an improvement")
    nothing = Comparison(metric="log_loss", challenger=0.4, champion=None, improvement=None)
    assert reach_of(GateSection(), nothing, days) is None
