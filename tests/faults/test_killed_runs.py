"""Whatever is killed, and whenever: running the command again gives the same model, bit for bit."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from components.clients.journal import Journal
from components.clients.lease import RunLease
from components.contracts.gate import Registration
from pipelines.runs import Home

pytestmark = pytest.mark.timeout(900)


def start(project: Path, home: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pipelines.cli",
            "run",
            str(project / "contract.toml"),
            "--home",
            str(home),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def finish(project: Path, home: Path) -> Registration:
    process = start(project, home)
    assert process.wait() == 0, (newest_folder(home) / "driver.log").read_text()[-3000:]
    return registration(home)


def registration(home: Path) -> Registration:
    (found,) = (newest_folder(home) / "steps").glob("register_model-*/registration")
    return Registration.read(found)


def newest_folder(home: Path) -> Path:
    return Home(home).folder(Home(home).runs()[-1].run_id)


def wait_for(home: Path, kind: str, step: str, process: subprocess.Popen) -> None:
    while process.poll() is None:
        if (home / "runs").exists() and Home(home).runs():
            for event, _ in Journal(newest_folder(home)).events():
                if event["kind"] == kind and event.get("step") == step:
                    return
        time.sleep(0.05)
    pytest.fail(f"the run ended before {kind} of {step}")


def children(process_id: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process_id:
            found.append(int(stat.parent.name))
    return found


def descendants(process_id: int) -> list[int]:
    direct = children(process_id)
    return direct + [below for child in direct for below in descendants(child)]


def command_of(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def no_process_is_left(home: Path) -> None:
    lease = RunLease(home)
    lease.acquire(timeout_seconds=30)
    lease.release()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights that a run gives when nobody kills anything."""
    found = {}

    def weights(project: Path) -> str:
        if "digest" not in found:
            home = tmp_path_factory.mktemp("undisturbed")
            found["digest"] = finish(project, home).weights_sha256
        return found["digest"]

    return weights


@pytest.mark.parametrize(
    "victim", ["supervisor", pytest.param("driver", marks=pytest.mark.full), "training rank"]
)
def test_killed_run_continues_to_the_same_model(project, tmp_path, undisturbed, victim):
    home = tmp_path / "home"
    process = start(project, home)
    wait_for(home, "progress", "train_model", process)
    time.sleep(random.random())
    below = {pid: command_of(pid) for pid in descendants(process.pid)}
    workers = [
        pid
        for pid, command in below.items()
        if "components.engine.worker" in command and "distributed.run" not in command
    ]
    drivers = [pid for pid, command in below.items() if "pipelines.local" in command]
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


@pytest.mark.usefixtures("interruptible")
def test_stopping_leaves_no_process_and_a_run_that_continues(project, tmp_path, undisturbed):
    home = tmp_path / "home"
    process = start(project, home)
    wait_for(home, "progress", "train_model", process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert Home(home).runs()[-1].status == "interrupted"
    no_process_is_left(home)
    assert finish(project, home).weights_sha256 == undisturbed(project)


@pytest.mark.full
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
