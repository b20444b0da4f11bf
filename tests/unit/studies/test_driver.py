"""Driver: each trial once, the same ones in whatever order they end, and after any interruption."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from made_up_studies import RATE, made_up_plan, made_up_trial
from perennial.clients.object_store import open_store
from perennial.contracts.errors import PerennialError
from perennial.contracts.user_code import RunStopped
from perennial.studies import driver as module
from perennial.studies import store as store_module
from perennial.studies.conclusion import read_trials
from perennial.studies.driver import Driver
from perennial.studies.store import StudyStore


class MadeUpRunner:
    """Answers from a surface, in an order that a generator chooses; dies before some trial."""

    def __init__(self, plan, surface, dies_at=None, seed=0):
        self.plan, self.surface, self.dies_at = plan, surface, dies_at
        self.ran = []
        self._random = random.Random(seed)
        self._stopped = threading.Event()

    def run(self, work):
        self._stopped.wait(self._random.random() / 500)
        if self._stopped.is_set() or len(self.ran) == self.dies_at:
            raise RunStopped(75)
        self.ran.append(work.number)
        found = self.surface(work.values)
        if isinstance(found, str):
            ended = made_up_trial(self.plan, work.number, work.values, 0.0, state=found)
            return ended.model_copy(update={"value": None})
        noise = sum(work.seeds) % 97 / 1e4
        trial = made_up_trial(self.plan, work.number, work.values, found + noise)
        seconds = {"device_seconds": 36.0, "seed": work.seeds[0]}
        trainings = tuple(each.model_copy(update=seconds) for each in trial.trainings)
        return trial.model_copy(update={"candidate": work.candidate, "trainings": trainings})

    def stop(self):
        self._stopped.set()


def driver_of(plan, folder, surface, owner="one", **runner):
    store = StudyStore(open_store(str(folder)), plan, owner)
    made_up = MadeUpRunner(plan, surface, **runner)
    return Driver(store, made_up, lambda trial, ended, total: None), made_up


def bowl(values):
    return (values[RATE] - 0.01) ** 2 + 0.1


def drive(plan, folder, surface=bowl, slots=2, **options):
    driver, runner = driver_of(plan, folder, surface, **options)
    driver.run(slots)
    return driver.all_trials(), runner


TWO_STAGES = {"trials": 12, "sampler": "tpe", "exploit": {"trials": 6}, "parallel": 3}


def test_a_study_has_baseline_two_stages_and_confirmations(tmp_path):
    plan = made_up_plan(**TWO_STAGES)
    trials, runner = drive(plan, tmp_path)
    assert sorted(runner.ran) == [trial.number for trial in trials] == list(range(19 + 6))
    assert [trial.stage for trial in trials].count("exploit") == 6
    confirmed = trials[19:]
    best = min(trials[1:19], key=plan.rank)
    assert [trial.candidate for trial in confirmed] == [0, best.number] * 3
    seeds = [trial.trainings[0].seed for trial in confirmed]
    assert seeds[::2] == seeds[1::2] == [plan.confirm_seed(i) for i in range(3)]
    assert confirmed[1].values == best.values


@pytest.mark.parametrize("pruning", ["off", "asha"])
def test_the_order_in_which_trials_end_changes_nothing(tmp_path, pruning):
    plan = made_up_plan(**TWO_STAGES, pruning=pruning)
    found = [drive(plan, tmp_path / str(seed), slots=3, seed=seed)[0] for seed in range(4)]
    assert found[0] == found[1] == found[2] == found[3]


def test_a_study_that_is_interrupted_again_and_again_has_the_same_trials(tmp_path):
    plan = made_up_plan(**TWO_STAGES)
    whole, _ = drive(plan, tmp_path / "whole")
    ran = []
    for seed in range(100):
        driver, runner = driver_of(plan, tmp_path / "cut", bowl, dies_at=seed % 4, seed=seed)
        try:
            driver.run(3)
        except RunStopped:
            ran += runner.ran
        else:
            ran += runner.ran
            break
    assert driver.all_trials() == whole
    assert sorted(ran) == list(range(25))


def test_two_drivers_share_the_trials_and_double_none(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
    plan = made_up_plan(**TWO_STAGES)
    whole, _ = drive(plan, tmp_path / "alone")
    both = [driver_of(plan, tmp_path / "both", bowl, owner) for owner in ("one", "two")]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda each: each[0].run(2), both))
    ran = [number for _, runner in both for number in runner.ran]
    assert sorted(ran) == list(range(25))
    assert all(runner.ran for _, runner in both)
    assert both[0][0].all_trials() == both[1][0].all_trials() == whole


def test_trials_of_a_driver_that_died_are_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(store_module, "STALE_SECONDS", 0.2)
    plan = made_up_plan()
    dead = StudyStore(open_store(str(tmp_path)), plan, "dead")
    assert dead.claim(0)
    trials, runner = drive(plan, tmp_path, owner="alive")
    assert runner.ran[0] == 0
    assert len(trials) == 17 + 6


def test_a_failed_trial_is_a_result(tmp_path):
    plan = made_up_plan()
    surface = lambda v: "infeasible" if v[RATE] > 0.1 else "failed" if v[RATE] < 3e-4 else bowl(v)  # noqa: E731
    trials, _ = drive(plan, tmp_path, surface)
    states = {trial.state for trial in trials}
    assert states == {"complete", "infeasible", "failed"}
    assert len(trials) == 17 + 6


def test_without_a_trial_that_ended_there_are_no_confirmations(tmp_path):
    plan = made_up_plan()
    trials, _ = drive(plan, tmp_path, lambda v: bowl(v) if v[RATE] == 1e-3 else "infeasible")
    assert [trial.state for trial in trials] == ["complete"] + ["infeasible"] * 16


def test_a_failing_baseline_ends_the_study_and_leaves_no_record(tmp_path):
    plan = made_up_plan()
    with pytest.raises(PerennialError, match="the baseline of the study did not complete"):
        drive(plan, tmp_path, lambda values: "infeasible")
    trials, _ = drive(plan, tmp_path)  # the cause was outside the contract, and is gone
    assert len(trials) == 23


def test_a_grid_has_as_many_trials_as_points(tmp_path):
    grid = {RATE: {"log": [1e-3, 1e-1], "grid_points": 5}}
    plan = made_up_plan(sampler="grid", nuisance=grid, trials=8)
    trials, _ = drive(plan, tmp_path)
    assert [trial.number for trial in trials] == [*range(6), *range(9, 15)]


# A trial takes 36 device seconds, 0.01 hours; two candidates are confirmed three times.
def test_the_budget_ends_the_search_and_keeps_enough_for_the_confirmations(tmp_path):
    plan = made_up_plan(device_hours=0.15, parallel=1)
    trials, _ = drive(plan, tmp_path, slots=1)
    assert [trial.number for trial in trials] == [*range(9), *range(17, 23)]
    again, runner = drive(plan, tmp_path, slots=1)
    assert (again, runner.ran) == (trials, [])


@pytest.mark.parametrize("drivers", [1, 3])
def test_no_trial_that_began_within_the_budget_runs_in_vain(tmp_path, monkeypatch, drivers):
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
    plan = made_up_plan(device_hours=0.15, parallel=3)
    for seed in range(4):
        folder = tmp_path / str(seed)
        every = [driver_of(plan, folder, bowl, str(n), seed=seed + n) for n in range(drivers)]
        with ThreadPoolExecutor(drivers) as threads:
            list(threads.map(lambda each: each[0].run(3 // drivers), every))
        numbers = [trial.number for trial in every[0][0].all_trials()]
        assert sorted(number for _, runner in every for number in runner.ran) == numbers
        assert numbers == [*range(9), *range(17, 23)]


def test_a_trial_that_was_interrupted_as_the_budget_ended_is_run_again(tmp_path):
    plan = made_up_plan(device_hours=0.15, parallel=3)
    whole, _ = drive(plan, tmp_path / "whole", slots=3)
    for seed in range(100):
        driver, _ = driver_of(plan, tmp_path / "cut", bowl, dies_at=2 + seed % 3, seed=seed)
        try:
            driver.run(3)
        except RunStopped:
            continue
        break
    assert driver.all_trials() == whole


def test_a_record_behind_the_end_of_its_stage_does_not_count(tmp_path):
    plan = made_up_plan(device_hours=0.15, parallel=1)
    trials, _ = drive(plan, tmp_path, slots=1)
    late = made_up_trial(plan, 12, {RATE: 0.01}, 0.0)
    StudyStore(open_store(str(tmp_path)), plan, "an earlier version").finish(late)
    assert read_trials(open_store(str(tmp_path)), plan) == trials


def test_the_budget_is_shared_between_the_stages(tmp_path):
    plan = made_up_plan(device_hours=0.22, parallel=1, trials=16, exploit={"trials": 8})
    trials, _ = drive(plan, tmp_path, slots=1)
    stages = [trial.stage for trial in trials]
    assert (stages.count("explore"), stages.count("exploit")) == (10, 6)
    assert stages.count("confirm") == 6


def test_a_budget_for_not_one_trial_is_refused_after_the_baseline(tmp_path):
    plan = made_up_plan(device_hours=0.07)
    with pytest.raises(PerennialError, match="does not suffice for a single trial") as caught:
        drive(plan, tmp_path)
    assert "set device_hours >= 0.08" in caught.value.action
