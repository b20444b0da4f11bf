"""A study that is killed, wherever and however often, has the same trials and the same verdict."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from killing import descendants, no_process_is_left, wait_for
from perennial.runs import FLOW, Home, step_records
from perennial.studies.records import Trial

STUDY = """
[study]
goal = "Which learning rate?"
trials = 6
sampler = "tpe"
pruning = "asha"
reduction = 2
[study.nuisance."training.optimizer.learning_rate"]
log = [1e-4, 1e-1]
[study.exploit]
trials = 2
"""
pytestmark = pytest.mark.timeout(900)


def start(project: Path, home: Path) -> subprocess.Popen[bytes]:
    study = project / "question.study.toml"
    study.write_text(STUDY)
    arguments = ("study", "run", str(project / "contract.toml"), "--study", str(study))
    return subprocess.Popen(
        [sys.executable, "-m", "perennial.cli", *arguments, "--home", str(home)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def finish(project: Path, home: Path) -> None:
    process = start(project, home)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed.decode()[-3000:]


def records(home: Path) -> tuple[list[Trial], dict[str, bytes]]:
    """Return the trials without their times, and what was concluded from them."""
    (plan,) = (home / "store" / "studies").glob("*/*/study.json")
    study = plan.parent
    trials = [Trial.from_json(file.read_bytes()) for file in sorted((study / "trials").iterdir())]
    timeless = [
        trial.model_copy(
            update={
                "trainings": tuple(
                    each.model_copy(update={"seconds": 0.0, "device_seconds": 0.0})
                    for each in trial.trainings
                )
            }
        )
        for trial in trials
    ]
    assert not list((study / "claims").iterdir())
    concluded = ("judgement.json", "result.json", "next.study.toml")
    return timeless, {name: (study / name).read_bytes() for name in concluded}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the records of a study that nobody kills, made once."""
    found = []

    def make(project: Path) -> tuple[list[Trial], dict[str, bytes]]:
        if not found:
            home = tmp_path_factory.mktemp("undisturbed")
            finish(project, home)
            found.append(records(home))
        return found[0]

    return make


@pytest.mark.full
@pytest.mark.parametrize("attempt", range(3))
def test_a_study_killed_at_any_moment_has_the_same_trials(project, tmp_path, undisturbed, attempt):
    home, chance = tmp_path / "home", random.Random(attempt)
    for _ in range(5):
        process = start(project, home)
        wait_for(home, "step_started", "snapshot_data", process)
        time.sleep(chance.uniform(0.0, 25.0))
        victims = [process.pid, *descendants(process.pid)]
        with_children = chance.choice([victims, [chance.choice(victims)]])
        for victim in with_children:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.communicate()
        no_process_is_left(home)
    finish(project, home)
    no_process_is_left(home)
    assert records(home) == undisturbed(project)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_study_stopped_by_a_signal_continues_where_it_was(project, tmp_path, undisturbed, number):
    home = tmp_path / "home"
    process = start(project, home)
    wait_for(home, "step_started", "run_trials", process)
    time.sleep(3.0)
    os.kill(process.pid, number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed.decode()[-2000:]
    assert b"Traceback" not in printed
    no_process_is_left(home)
    finish(project, home)
    assert records(home) == undisturbed(project)


@pytest.mark.full
def test_two_commands_at_once_run_one_study(project, tmp_path):
    home = tmp_path / "home"
    first = start(project, home)
    wait_for(home, "step_started", "snapshot_data", first)
    second = start(project, home)
    printed, _ = second.communicate()
    assert second.returncode == 2
    assert b"another run is active for" in printed
    first.communicate()
    assert first.returncode == 0
    trials, _ = records(home)
    assert len(list((home / "store" / "training").iterdir())) == len(trials) == 9 + 6
    assert [trial.stage for trial in trials].count("exploit") == 2
    (run,) = Home(home).runs()
    steps = step_records(home / "runs" / run.run_id)
    assert [(step.step, step.status) for step in steps] == [
        (name, "finished") for name in FLOW["hyperparameter_study"]
    ]
    (study,) = json.loads(perennial("study", "status", "--home", home, "--json"))
    assert study["goal"] == "Which learning rate?"
    assert study["planned"] == 9
    assert sum(study["trials"].values()) == 15
    assert "9 planned, 0 running" in perennial("study", "status", "clicks", "--home", home)


def perennial(*arguments) -> str:
    command = [sys.executable, "-m", "perennial.cli", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
