"""Whole runs as processes of this machine: start them, find what belongs to them, see them end."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perennial.contracts.gate import Registration
from perennial.runs import Home
from perennial.steps.journal import Journal
from perennial.steps.lease import RunLease


def start(project: Path, home: Path, output: Path = Path(os.devnull)) -> subprocess.Popen[bytes]:
    arguments = ("run", str(project / "contract.toml"), "--home", str(home))
    with output.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "perennial.cli", *arguments],
            stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip


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


def name_of(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/comm").read_text().strip()
    except OSError:
        return ""


def command_of(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def no_process_is_left(home: Path) -> None:
    # Of the one model that runs there; none where the run was killed before it asked for it.
    for folder in (home / "locks").glob("*"):
        lease = RunLease(folder)
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
