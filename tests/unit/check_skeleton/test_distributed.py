"""The trials' plan, the comparison of their records, and that nothing of them is left behind."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import rank_bound_tasks
from perennial.check_skeleton.checks.training import distributed
from perennial.check_skeleton.checks.training.distributed import (
    count_seen_twice,
    explain_failure,
    judge_equivalence,
    list_requested_strategies,
    list_shared_order,
    measure_difference,
)
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.trials import supervisor
from perennial.check_skeleton.trials.plan import (
    RankRecord,
    StepRecord,
    Trial,
    compute_digests,
    make_contracted_training,
    plan_stages,
)
from perennial.check_skeleton.trials.rank import find_randomness_switch
from perennial.check_skeleton.trials.supervisor import (
    Outcome,
    Trials,
    make_environment,
    make_trials,
)
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import RankFailure
from perennial.tasks.tabular import TabularClassification
from skeleton_tables import SETTINGS, prepared


def recorded(rows, losses=(1.0, 2.0), weight=1.0):
    steps = [
        StepRecord(step, loss, np.asarray(part), tuple(map(str, part)), is_seed_kept=True)
        for step, (loss, part) in enumerate(zip(losses, rows, strict=True), start=1)
    ]
    return RankRecord(
        steps=steps, start={"w": torch.zeros(2)}, weights={"w": torch.full((2,), weight)},
        parameters=frozenset("w"),
    )  # fmt: skip


def test_rows_of_all_ranks_are_cut_into_epochs():
    first, second = recorded([[0, 1], [4, 2]]), recorded([[2, 3], [0, 1]])
    assert list_shared_order([first, second], 4) == [(0, 1, 2, 3), (4, 2, 0, 1)]
    assert count_seen_twice([first, second], 4) == (0, 0)
    assert count_seen_twice([first, first], 4) == (2, 0)


@pytest.mark.parametrize(
    ("losses", "weight", "first_step", "is_large"),
    [
        ((1.0, 2.0), 1.0 + 1e-6, 0, False),
        ((1.0, 2.1), 1.0, 2, True),
        ((1.0, 2.0), 1.1, 0, True),
        ((1.0, float("nan")), 1.0, 2, True),
        ((1.0, 2.0), float("nan"), 0, True),
    ],
)
def test_rounding_is_not_a_difference(losses, weight, first_step, is_large):
    rows = [[0, 1], [2, 3]]
    found = measure_difference(recorded(rows), recorded(rows, losses, weight))
    assert (found.first_step, found.is_large) == (first_step, is_large)


def test_weights_missing_from_one_trial_are_a_difference():
    one, other = recorded([[0], [1]]), recorded([[0], [1]])
    other.weights["late"] = torch.zeros(1)
    found = measure_difference(one, other)
    assert (found.tensor, found.is_large) == ("late", True)


def outcome(message, **values):
    failure = RankFailure(
        rank=0, step=1, type="RuntimeError", message=message, time=0.0, is_consequence=False,
        traceback='File "/work/task.py", line 7, in forward',
    )  # fmt: skip
    training = TrainingSection()
    trial = Trial("ddp", training, 2, "ddp")
    return Outcome(trial, codes=(1, 1), failure=failure, **values)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("Expected to have finished reduction in the prior iteration", "no gradient in some"),
        ("FSDP does not support non-contiguous parameters yet", "contiguous()"),
        ("[gloo/transport] /gloo/pair.cc Connection reset by peer", "do not match"),
        ("Default process group has not been initialized", "torch.distributed in the task"),
        ("Missing key in checkpoint state_dict", "every parameter and buffer in build_model"),
        ("FSDP expects uniform original parameter dtype but got {a, b}", "view_as_real"),
        ("whatever", "task.py:7 in forward"),
    ],
)
def test_an_exception_is_traced_to_its_likely_cause(message, cause):
    assert cause in explain_failure(outcome(message))


@pytest.mark.parametrize(
    ("message", "strategy", "verdict"),
    [
        ("FSDP expects uniform original parameter dtype", "auto", "warned"),
        ("FSDP expects uniform original parameter dtype", "fsdp", "failed"),
        ("whatever", "auto", "failed"),
    ],
)
def test_what_fsdp_cannot_shard_does_not_stop_a_training_that_takes_ddp(message, strategy, verdict):
    record = recorded([[0, 1], [2, 3]])
    alone = Outcome(Trial("alone", TrainingSection(), 1, "alone"), {0: record}, codes=(0,))
    ddp = Outcome(Trial("ddp", TrainingSection(), 2, "ddp"), {0: record, 1: record}, codes=(0, 0))
    trials = Trials("", {"alone": alone, "ddp": ddp, "fsdp": outcome(message)})
    result = judge_equivalence(Judge("rank_equivalence"), trials, strategy)
    assert result.outcome == verdict


def exact_trials(losses, weight, repeat=0):
    """One process, whose losses are whole numbers, and two whose own and weights differ."""
    rows = [[number, number + 1] for number in range(len(losses))]
    whole = recorded(rows, [float(round(each)) for each in losses])
    ranks = {"alone": 1, "ddp": 2, "fsdp": 2}
    records = dict.fromkeys(ranks, recorded(rows, losses, weight)) | {"alone": whole}
    outcomes = {
        name: Outcome(Trial(name, TrainingSection(), count, name), codes=(0,) * count,
                      ranks=dict.fromkeys(range(count), records[name]))
        for name, count in ranks.items()
    }  # fmt: skip
    return Trials("", outcomes, repeat=repeat)


@pytest.mark.parametrize(
    ("first", "later", "found"),
    [
        (((1.0, 2.0), 1.0), 1.0, ("passed", 0)),
        (((1.0, 2.00001), 1.004), 1.0, ("passed", 1)),  # a gradient that rounding moved once
        (((1.0, 2.00001), 1.004), 1.004, ("failed", 2)),  # from every start: no rounding
        (((1.0, 2.0), 1.1), 1.0, ("failed", 0)),
        (((1.0, 2.01), 1.004), 1.0, ("failed", 0)),
        (((1.0, 2.0, 3.0, 4.1), 1.3), 1.0, ("passed", 1)),  # moved in the third update alone
        (((1.0, 2.0, 3.0, 4.1), 1.3), 1.3, ("failed", 1)),  # another start differs from the first
        (((1.0, 2.0, 3.1, 4.1), 1.3), 1.0, ("failed", 0)),
    ],
)
def test_a_gradient_that_rounding_moves_is_not_there_from_another_start(
    first, later, found, datasets, monkeypatch
):
    repeats = []

    def repeated(_, repeat):
        repeats.append(repeat)
        return exact_trials((1.0, 2.0), later, repeat)

    monkeypatch.setattr(distributed, "make_trials", lambda _: exact_trials(*first))
    monkeypatch.setattr(distributed, "repeat_exact_trials", repeated, raising=False)
    monkeypatch.setattr(
        distributed,
        "run_rounded_trial",
        lambda _, repeat: exact_trials([1.0, 2.0, 3.0, 4.0][: 2 if repeat else len(first[0])], 1.0),
    )
    training = TrainingSection(strategy="ddp")
    subject = prepared(TabularClassification, datasets("binary"), training=training)
    result = distributed.check_rank_equivalence(subject)
    assert (result.outcome, len(repeats)) == found


def test_hang_reports_the_steps_of_each_rank():
    hung = outcome("", is_hung=True, steps=(2, 1), seconds=20.0)
    assert "rank 0: 2, rank 1: 1" in hung.problem
    assert "only some ranks call" in explain_failure(hung)


@pytest.mark.parametrize(
    ("strategy", "tried", "wanted"),
    [
        ("single", ["alone", "straight", "resumed"], ("fsdp",)),
        ("auto", ["alone", "passes", "ddp", "fsdp", "straight", "resumed"],
         ("ddp", "fsdp")),
        ("ddp", ["alone", "passes", "ddp", "fsdp", "straight", "resumed"], ("ddp",)),
    ],
)  # fmt: skip
def test_strategies_that_the_contract_may_run_are_tried(strategy, tried, wanted, datasets):
    training = TrainingSection(strategy=strategy, seed=3)
    subject = prepared(TabularClassification, datasets("binary"), training=training)
    stages = plan_stages(subject, 32, "dropout", has_batch_norm=False)
    assert [trial.name for stage in stages for trial in stage] == tried
    assert all(trial.training.seed == 3 for stage in stages for trial in stage)
    assert list_requested_strategies(strategy) == wanted


def test_the_resumed_training_is_the_contract_s_own():
    training = TrainingSection(
        optimizer={"name": "adamw", "learning_rate": 1e-3}, precision="bf16", compile=True,
        clipping={"max_norm": 0.5},
    )  # fmt: skip
    section = make_contracted_training(training, 16)
    assert (section.optimizer, section.clipping) == (training.optimizer, training.clipping)
    assert (section.steps, section.schedule) == (training.steps, training.schedule)
    assert (section.precision, section.compile, section.micro_batch_size) == ("bf16", False, 8)


@pytest.mark.parametrize(
    ("task_type", "randomness_off"),
    [
        (TabularClassification, "dropout"),
        (rank_bound_tasks.DrawsInForward, "evaluation"),
        (rank_bound_tasks.MixesUp, "noise"),
    ],
)
def test_only_necessary_randomness_is_switched_off(task_type, randomness_off, datasets):
    subject = prepared(task_type, datasets("binary"), options={"dropout": 0.5})
    assert find_randomness_switch(subject) == randomness_off


def test_a_task_that_no_other_process_can_make_is_skipped_with_the_reason(datasets):
    class Local(TabularClassification):
        pass

    trials = make_trials(prepared(Local, datasets("binary")))
    assert "cannot be created in another process" in trials.reason
    assert "Local" in trials.reason


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"is_slow": True, "steps": (2, 2), "seconds": 10.0}, "raise skeleton.trial_seconds"),
        ({"codes": (1, -signal.SIGKILL)}, "out of memory or disk"),
        ({"codes": (1, 1), "failure": None}, "out of memory or disk"),
        ({"is_hung": True, "codes": (-signal.SIGKILL, -signal.SIGKILL)}, ""),
        ({}, ""),
    ],
)
def test_missing_machine_resources_do_not_fail_the_task(values, reason):
    found = replace(outcome("whatever"), **values).obstacle
    assert reason in found
    assert bool(found) == bool(reason)
    assert replace(outcome("[Errno 28] No space left on device"), is_hung=False).obstacle


def test_no_folder_for_the_trials_is_a_reason_to_skip_them(datasets, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    trials = make_trials(prepared(TabularClassification, datasets("binary")))
    assert "cannot run on this machine" in trials.reason


def test_no_network_between_processes_is_a_reason_to_skip_the_trials(datasets, monkeypatch):
    missing = make_environment() | {"GLOO_SOCKET_IFNAME": "missing0"}
    monkeypatch.setattr(supervisor, "make_environment", lambda: missing)
    trials = make_trials(prepared(TabularClassification, datasets("binary")))
    assert "processes on this machine cannot communicate" in trials.reason


def test_an_input_without_columns_has_a_digest():
    batch = {"numbers": torch.eye(2), "categories": torch.empty(2, 0, dtype=torch.long)}
    assert len(set(compute_digests(batch))) == 2


def is_gone(pid_file):
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def within(seconds, condition):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_an_interrupted_check_leaves_neither_process_nor_folder(datasets, tmp_path, monkeypatch):
    pid_file = tmp_path / "pid"

    def interrupt(number, frame):
        if pid_file.exists() and pid_file.read_text():
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            raise KeyboardInterrupt

    subject = prepared(TabularClassification, datasets("binary"))
    sleeper = partial(rank_bound_tasks.sleep_for_ever, str(pid_file))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            make_trials(replace(subject, make_task=sleeper))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert not list(tmp_path.glob("perennial-trials-*"))
    assert within(10, lambda: is_gone(pid_file))


WANTING = """
import pickle, sys
from perennial.check_skeleton.trials.supervisor import make_trials
make_trials(pickle.load(open(sys.argv[1], "rb")))
"""


def test_ranks_end_and_delete_their_files_when_their_parent_is_killed(datasets, tmp_path):
    pid_file, stored = tmp_path / "pid", tmp_path / "subject"
    folder = tmp_path / ("longer than the path of a socket may be " * 3)
    subject = prepared(TabularClassification, datasets("binary"))
    sleeper = partial(rank_bound_tasks.sleep_for_ever, str(pid_file))
    stored.write_bytes(pickle.dumps(replace(subject, make_task=sleeper)))
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(WANTING)  # without `if __name__ == "__main__"`: ranks must not run it again
    environment = make_environment() | {"TMPDIR": str(folder)}
    with subprocess.Popen([sys.executable, str(script), str(stored)], env=environment) as wanting:
        try:
            assert within(200, lambda: pid_file.exists() or wanting.poll() is not None)
            assert within(10, pid_file.read_text)
            assert list(folder.glob("perennial-trials-*"))
        finally:
            wanting.kill()
    assert within(30, lambda: is_gone(pid_file) and not list(folder.glob("perennial-trials-*")))


@pytest.mark.parametrize(
    ("task_type", "reported"),
    [
        (rank_bound_tasks.ExitsInTraining, "exited with 0"),
        (rank_bound_tasks.KillsItself, "ran out of memory"),
        (rank_bound_tasks.HangsInTraining, "timed out"),
    ],
)
def test_a_rank_that_ends_or_hangs_is_reported(task_type, reported, datasets):
    seconds = 10.0 if task_type is rank_bound_tasks.HangsInTraining else 120.0
    settings = SETTINGS.model_copy(update={"trial_seconds": seconds})
    subject = prepared(task_type, datasets("binary"), settings=settings)
    found = make_trials(subject)
    assert found.reason == ""
    alone = found["alone"]
    assert reported in f"{alone.problem} {alone.obstacle}"
    assert found["ddp"].problem == "not run, because an earlier trial failed"
