"""A champion is challenged again and again on the same days, and one in 20 holds for all of it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.special import stdtrit

from perennial.clients.object_store import LocalObjectStore
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Repeats
from perennial.engine.evaluation.resampling import Blocks
from perennial.engine.evaluation.uncertainty import Estimate, Spread
from perennial.gate.config import GateSection
from perennial.gate.decision import effective_days_needed
from perennial.gate.repeats import PastTest, claim_test, runs_of, spent_level

LEVEL, GATE = 0.05, GateSection()
START = date(2025, 1, 1)


def days(first, count):
    return runs_of({START + timedelta(days=first + number) for number in range(count)})


def past_test(challenger, run="", *, champion="3", first=0, count=30):
    return PastTest(
        champion=champion, champion_sha256=f"sha-{champion}", challenger_sha256=challenger,
        run_id=run or f"run-{challenger}", blocks=count, days=days(first, count),
    )  # fmt: skip


@pytest.fixture
def claim(tmp_path):
    """Records a test."""
    store = LocalObjectStore(tmp_path)
    return lambda test, model="clicks": claim_test(store, model, test, LEVEL)


def test_the_first_challenger_has_the_whole_level(claim):
    found = claim(past_test("a"))
    assert (found.earlier, found.worth, found.level) == (0, 0.0, LEVEL)


def test_later_challengers_on_the_same_days_have_ever_less(claim):
    levels = [claim(past_test(f"challenger {number}")).level for number in range(5)]
    assert levels == sorted(levels, reverse=True)
    assert levels[1] < LEVEL / 2


def test_a_step_that_is_made_again_does_not_count_twice(claim):
    claim(past_test("a"))
    first = claim(past_test("b"))
    claim(past_test("c"))
    assert claim(past_test("b")) == first
    assert claim(past_test("b, trained again by the same run", run="run-b")) == first


def test_equal_weights_of_another_run_do_not_count_twice(claim):
    claim(past_test("a"))
    assert claim(past_test("a", run="another")).earlier == 0


def test_runs_without_an_id_are_not_one_run(claim):
    claim(past_test("a", run="unknown"))
    assert claim(past_test("b", run="unknown")).earlier == 1


def test_other_days_start_again_and_shared_days_count_by_their_share(claim):
    claim(past_test("a"))
    assert claim(past_test("b", first=30)).level == LEVEL
    assert claim(past_test("c", first=60)).earlier == 0
    partly = claim(past_test("d", first=45, count=30))
    assert (partly.earlier, partly.worth) == (2, pytest.approx(1.0))


def test_another_champion_and_another_model_start_again(claim):
    claim(past_test("a"))
    assert claim(past_test("b", champion="4")).earlier == 0
    assert claim(past_test("b"), "other model").earlier == 0


def test_blocks_without_a_date_are_taken_for_the_same_ones(claim):
    undated = {"days": (), "blocks": 100}
    claim(past_test("a").model_copy(update=undated))
    grown = claim(past_test("b").model_copy(update={**undated, "blocks": 125}))
    assert (grown.earlier, grown.worth) == (1, pytest.approx(0.8))


def test_runs_at_once_count_each_other(claim):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: claim(past_test(f"c{number}")).earlier, range(8)))
    assert sorted(found) == list(range(8))


def test_a_damaged_record_is_an_error_that_names_it(tmp_path, claim):
    (tmp_path / "gate/clicks").mkdir(parents=True)
    (tmp_path / "gate/clicks/tests.json").write_text("{")
    with pytest.raises(PerennialError, match="record of earlier tests of clicks cannot be read"):
        claim(past_test("a"))


def test_days_become_runs_of_adjacent_ones():
    assert runs_of(set()) == ()
    assert days(0, 3) == ((START, START + timedelta(days=2)),)
    apart = {START, START + timedelta(days=1), START + timedelta(days=5)}
    assert [last - first for first, last in runs_of(apart)] == [timedelta(days=1), timedelta(0)]


def autoregressive(random, correlation, shape):
    noise = random.normal(size=(shape[0], shape[1] + 50))
    return lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], noise)[:, -shape[1] :]


def test_a_later_challenger_needs_more_independent_days():
    gate = GateSection(min_effective_days=7.0)
    assert effective_days_needed(gate) == 7.0
    found = [
        effective_days_needed(gate, Repeats(earlier=n, worth=n, level=spent_level(LEVEL, n)))
        for n in range(4)
    ]
    assert found == sorted(found)
    assert found[0] == 7.0
    assert found[1] == pytest.approx(7.0 * np.log(0.01) / np.log(0.05))


@pytest.mark.parametrize(("count", "correlation"), [(27, 0.0), (27, 0.6), (9, 0.9)])
@pytest.mark.parametrize("families", [80, pytest.param(2000, marks=pytest.mark.full)])
def test_of_families_of_thirty_equal_challengers_one_in_twenty_promotes_any(
    families, count, correlation
):
    random, blocks = np.random.default_rng(0), Blocks(np.arange(count), count, "day")
    wrong = np.zeros((2, families), dtype=bool)
    champions = autoregressive(random, correlation, (families, count))
    for number in range(30):
        level = spent_level(LEVEL, number)
        needed = effective_days_needed(GATE, Repeats(earlier=number, worth=number, level=level))
        challengers = champions + autoregressive(random, correlation, (families, count))
        for family, series in enumerate(challengers):
            error = series.std(ddof=1) / np.sqrt(count)
            found = Estimate.of(series.mean(), error, Spread.of(series - series.mean(), blocks))
            plain = series.mean() - stdtrit(count - 1, 1 - LEVEL) * error
            wrong[0, family] |= plain > 0
            wrong[1, family] |= found.effective >= needed and found.interval(1 - level).low > 0
    flat, spent = wrong.mean(axis=1)
    assert flat > 0.2, "thirty chances at the whole level"
    assert spent <= 0.065 + 2.5 * np.sqrt(0.05 * 0.95 / families) / (1 if families < 1000 else 2)
