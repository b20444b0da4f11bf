"""Judgement: the answers to scientific questions, from confirmations of known quality."""

from dataclasses import replace

import numpy as np

from benchmarks.study_decisions import Spread, made_candidates, made_rows
from made_trials import RATE, made_plan, made_trial, made_trials
from perennial.contracts.gate import Repeats
from perennial.studies.analysis.search import finalists
from perennial.studies.judgement import Measurements, decide_study


def judge(plan, trials):
    """Judge finalists whose confirmations are drawn around their values."""
    numbers = [0, *finalists(plan, trials)]
    rows = made_rows(40)
    true = [trials[number].value for number in numbers]
    spread = Spread(between_seeds=0.1)
    measured = made_candidates(true, rows, np.random.default_rng(0), spread=spread)
    candidates = {n: replace(each, trial=n) for n, each in zip(numbers, measured, strict=True)}
    judged = Measurements(candidates, rows, Repeats(earlier=0, worth=0.0, level=0.05), 4000)
    return decide_study(plan, trials, judged)


def answer_about_a_range(value):
    """Judge a study whose question is a learning rate from 1e-4 to 0.1, given its true effect."""
    plan = made_plan({}, {RATE: {"log": (1e-4, 1e-1)}})
    trials = made_trials(plan, lambda at: value(at[RATE]), 16)
    (answer,) = judge(plan, trials).answers
    assert len(answer.comparisons) == 3
    return answer.text


def test_a_range_is_answered_by_its_thirds():
    text = answer_about_a_range(lambda place: 10.0 * place)
    assert "0.01 to 0.1 is better than 0.0001 to 0.001, by " in text
    assert "0.01 to 0.1 is better than 0.001 to 0.01, by " in text
    assert "inconclusive" not in text


def test_a_range_without_an_effect_is_inconclusive():
    text = answer_about_a_range(lambda place: 0.0)
    assert text.count("inconclusive, the difference is within ±") == 3


def test_a_trial_of_the_contract_s_own_values_is_no_rival():
    plan = made_plan({}, {RATE: {"choices": (1e-3, 1e-1)}})
    rates = {0: 1e-3, 1: 1e-3, 2: 1e-1}
    trials = [
        made_trial(n, {RATE: rate}, [1.0 if rate == 1e-3 else 0.0]) for n, rate in rates.items()
    ]
    trials[1] = trials[1].model_copy(update={"trainings": trials[0].trainings})
    found = judge(plan, trials)
    assert [each.trial for each in found.comparisons] == [2]
    assert found.decision == "reject"
    alone = judge(plan, trials[:2])
    assert (alone.decision, alone.comparisons) == ("reject", ())
