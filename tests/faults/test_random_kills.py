"""Whole runs, hit sixty times: any of their processes, at any moment, by one of three signals.

Every fifth case starts two runs in one home at once. Whatever is hit: one champion with the
weights of an undisturbed run, no process and no temporary file left. Prints a table of the cases;
`PERENNIAL_KILLED_RUNS=FILE` writes it there, with the rows of earlier calls kept, and asks for all
sixty; without it, every seventh is hit, so that the longest suite ends within hours.
"""

import contextlib
import hashlib
import os
import random
import re
import signal
import subprocess
import time
from datetime import date
from pathlib import Path

import pytest

from killing import (
    command_of,
    descendants,
    name_of,
    newest_folder,
    no_process_is_left,
    start,
)
from perennial.clients.version_control import commit_of
from perennial.contracts.environment import Environment
from perennial.registry.model_registry import CHAMPION, open_registry
from perennial.runs import FLOW, Home
from perennial.steps.journal import Journal

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]

CASES = 60
# Every seventh has each signal, and two runs at once.
SEEDS = range(0, CASES, 1 if os.environ.get("PERENNIAL_KILLED_RUNS") else 7)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
STEPS = FLOW["continuous_training"]
MOMENTS = (
    ("run", ""),
    *((kind, step) for step in STEPS for kind in ("step_started", "step_finished")),
    ("progress", "check_skeleton"),
    ("progress", "train_model"),
)
# In a process's command; the first that is found names the process.
ROLES = {
    "perennial.cli": "supervisor", "perennial.local": "driver",
    "multiprocessing.forkserver": "fork server",
}  # fmt: skip
# Locks, which other processes may hold by name, and DCP's own file: none is a temporary file.
KEPT = {".mlflow.db.lock", ".locks", ".metadata"}
REFUSED = "another run is active"
# Seconds: a run that takes longer than this hangs.
PATIENCE = 1200
HEADER = "| seed | runs at once | victim | signal | last event before it | runs needed | outcome |"


@pytest.fixture(scope="module")
def rows(request):
    """The table's rows by seed: those of the file, if one is named, and those of this call."""
    file = os.environ.get("PERENNIAL_KILLED_RUNS")
    found: dict[int, str] = {}
    if file and Path(file).exists():
        for line in Path(file).read_text().splitlines():
            if row := re.match(r"\| (\d+) \|", line):
                found[int(row[1])] = line
    yield found
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n" + as_table(found))


def as_table(rows: dict[int, str]) -> str:
    title = f"# Killed runs ({date.today()}, commit {commit_of(Path(__file__).parent)[:12]})"
    good = sum("as undisturbed" in row for row in rows.values())
    count = f"{len(rows)} of the {CASES} cases were run; {good} ended as undisturbed."
    lines = [HEADER, "|---" * HEADER.count(" | ") + "|---|", *(rows[seed] for seed in sorted(rows))]
    return "\n".join((title, "", count, "", *lines, ""))


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """Processes that end with the test; their temporary files go to `scratch`."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.terminate()  # the supervisor ends what it has started
            process.wait()


def role_of(process_id: int) -> str:
    name = name_of(process_id)
    if name.startswith("rank-"):
        return "rank"
    if name and any(step.startswith(name) for step in STEPS):  # its command is the driver's
        return "step"
    command = command_of(process_id)
    return next((role for part, role in ROLES.items() if part in command), "helper")


def events(home: Path) -> list[tuple[str, str]]:
    if not Home(home).runs():
        return []
    found = (event for event, _ in Journal(newest_folder(home)).events())
    return [(str(event["kind"]), str(event.get("step", ""))) for event in found]


def disturb(
    started: list[subprocess.Popen[bytes]], home: Path, seed: int
) -> tuple[str, str, str, int | None]:
    """Signal one process of the runs; its role, the signal, the last event, its run's supervisor."""
    chance = random.Random(seed)
    moment = MOMENTS[seed * 5 % len(MOMENTS)]
    number = SIGNALS[seed % len(SIGNALS)]
    while moment not in events(home) and any(each.poll() is None for each in started):
        time.sleep(0.05)
    time.sleep(chance.uniform(0.0, 1.0 if moment[0] == "progress" else 4.0))
    last = " ".join((events(home) or [("none", "")])[-1]).strip()
    above = {
        below: each.pid
        for each in started
        if each.poll() is None
        for below in (each.pid, *descendants(each.pid))
        if command_of(below)
    }
    if not above:
        return "(had ended)", number.name, last, None
    role = chance.choice(sorted({role_of(each) for each in above}))
    victim = chance.choice([each for each in sorted(above) if role_of(each) == role] or [*above])
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, number)
        if number == signal.SIGSTOP:
            time.sleep(chance.uniform(1.0, 3.0))
            os.kill(victim, signal.SIGCONT)
    return role, number.name, last, above[victim]


def has_succeeded(home: Path) -> bool:
    runs = Home(home).runs()
    return bool(runs) and runs[-1].status == "succeeded"


def temporary_files(home: Path) -> list[Path]:
    return [
        path
        for path in home.rglob("*")
        if (path.name.startswith(".") or path.suffix in {".tmp", ".copying", ".part"})
        and path.name not in KEPT
    ] + [*home.glob("runs/*/tmp")]


def processes_of(home: Path) -> list[str]:
    """Commands of the processes whose arguments or environment name the home."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for source in ("cmdline", "environ"):
                if str(home).encode() in (process / source).read_bytes():
                    found.append(f"{process.name} {command_of(int(process.name))[:200]}")
    return found


def champion_weights(home: Path) -> str:
    """Of the only version, which is champion."""
    place = Home(home)
    environment = Environment(place.store_uri, place.tracking_uri, "test")
    registry = open_registry(environment)
    (version,) = registry.versions("clicks")
    champion = registry.version_by_alias("clicks", CHAMPION)
    assert champion is not None
    assert champion.version == version.version == "1"
    content = registry.read_files(champion, ["model.safetensors"])["model.safetensors"]
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("seed", SEEDS)
def test_run_hit_at_any_moment_ends_as_if_undisturbed(project, undisturbed, rows, ended, seed):
    expected = undisturbed(project)
    home = project / "home"
    at_once = 2 if seed % 5 == 4 else 1
    outputs = [project / f"output-{index}" for index in range(at_once)]
    ended += [start(project, home, output) for output in outputs]
    role, number, last, hit = disturb(ended, home, seed)
    facts = f"| {seed} | {at_once} | {role} | {number} | {last} |"
    try:
        codes = [each.wait(PATIENCE) for each in ended]
        no_process_is_left(home)
        for process, code, output in zip(list(ended), codes, outputs, strict=True):
            assert process.pid == hit or code == 0 or REFUSED in output.read_text()
            assert "Traceback" not in output.read_text()
        needed = 1
        while not has_succeeded(home):
            needed += 1
            assert needed <= 4, outputs[0].read_text()
            ended.append(start(project, home, outputs[0]))
            ended[-1].wait(PATIENCE)
            no_process_is_left(home)
        assert champion_weights(home) == expected
        assert temporary_files(home) == []
        assert [*(project / "scratch").iterdir()] == []
        deadline = time.monotonic() + 30
        while (left := processes_of(home)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert left == []
        refused = sum(REFUSED in output.read_text() for output in outputs)
        outcome = "as undisturbed" + (f", {refused} refused" if at_once == 2 else "")
        rows[seed] = f"{facts} {needed} | {outcome} |"
    except Exception:
        rows[seed] = f"{facts} - | **did not end as it should** |"
        raise
    finally:
        if file := os.environ.get("PERENNIAL_KILLED_RUNS"):
            Path(file).write_text(as_table(rows))
