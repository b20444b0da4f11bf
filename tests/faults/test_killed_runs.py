"""Whatever is killed, and whenever: running the command again gives the same model, bit for bit."""

import os
import random
import signal
import time

import pytest

from killing import (
    command_of,
    descendants,
    finish,
    name_of,
    no_process_is_left,
    registration,
    start,
    wait_for,
)
from perennial.runs import Home

# Of `make test`: test_training_faults.py kills a rank, pipelines/test_local_run.py stops a run.
pytestmark = [pytest.mark.timeout(900), pytest.mark.full]


@pytest.mark.parametrize("victim", ["supervisor", "driver", "training rank"])
def test_killed_run_continues_to_the_same_model(project, tmp_path, undisturbed, victim):
    home = tmp_path / "home"
    process = start(project, home)
    wait_for(home, "progress", "train_model", process)
    time.sleep(random.random())
    below = {pid: command_of(pid) for pid in descendants(process.pid)}
    workers = [pid for pid in below if name_of(pid).startswith("rank-")]
    drivers = [pid for pid, command in below.items() if "perennial.local" in command]
    if victim == "supervisor":
        os.kill(process.pid, signal.SIGKILL)
    elif victim == "driver":
        os.kill(drivers[0], signal.SIGKILL)
    elif workers:  # the job may just have ended; then there is nothing to disturb
        os.kill(workers[0], signal.SIGKILL)
    code = process.wait()
    no_process_is_left(home)
    # A killed rank is restarted within the run; the others need the command again.
    assert (code == 0) == (victim == "training rank")
    again = registration(home) if code == 0 else finish(project, home)
    assert again.weights_sha256 == undisturbed(project)
    assert again.version == "1"


@pytest.mark.parametrize("attempt", range(5))
def test_run_killed_at_any_moment_continues_to_the_same_model(
    project, tmp_path, undisturbed, attempt
):
    """Again and again, until a run survives: whatever step it is in, nothing is lost."""
    home = tmp_path / "home"
    chance = random.Random(attempt)
    for _ in range(2):
        process = start(project, home)
        time.sleep(chance.uniform(1.0, 25.0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        no_process_is_left(home)
    runs = Home(home).runs() if (home / "runs").exists() else []
    if runs and runs[-1].status == "succeeded":  # it was faster than the kill
        assert registration(home).weights_sha256 == undisturbed(project)
        return
    assert finish(project, home).weights_sha256 == undisturbed(project)
