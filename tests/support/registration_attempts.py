"""Attempts at registration, each in a process of its own that is forked from a warm one.

`python tests/support/registration_attempts.py JOB.json` reads a job and prints a line of JSON per result.
"""

import gc
import hashlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from mlflow.store.model_registry import sqlalchemy_store

from perennial.clients.object_store import open_store
from perennial.contracts import artifact
from perennial.contracts.environment import Environment
from perennial.contracts.training import Challenger
from perennial.contracts.version_decisions import VersionDecision
from perennial.engine.export import WEIGHTS_FILE, load_model
from perennial.register_model.step import register_model_step
from perennial.registry import model_registry, promotion
from perennial.registry.champion_records import AliasChange
from perennial.registry.model_registry import CHALLENGER, CHAMPION, open_registry
from registration_inputs import NAME

OURS = (Path(promotion.__file__).parent, Path(model_registry.__file__).parent, artifact.__file__)
MLFLOWS = (sqlalchemy_store.__file__,)
FILES = {
    "challenger.json", "contract.json", "lineage.json", "model.safetensors", "model_card.md",
    "reference.json", "skeleton.json", "snapshot.json", "verdict.json",
    "MLmodel", "code", "conda.yaml", "python_env.yaml", "requirements.txt",
    "example_rows.parquet", "example_predictions.json", "input_example.json",
    "serving_input_example.json",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """What is tried.

    Attributes:
        home: Database and store; copied from `template` for each point.
        template: What they were before the attempt.
        arguments: Of the step.
        before: Versions there were, of which the last is champion.
        points: The executed lines, counted from 0, before which an attempt is killed; none: list
            the lines.
        inside: Also count the lines of MLflow's own registry, and list each with the digest of what
            a kill before it leaves.
    """

    home: str
    template: str
    arguments: dict[str, str]
    before: int
    points: list[int]
    inside: bool


class World:
    """The digest of every file of a folder: what is left of a process that is killed now."""

    SETTLED = 1_000_000_000  # nanoseconds: longer than two writes can share a time stamp

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[tuple[str, int, int, int], str] = {}

    def digest(self) -> str:
        parts = [self._file(path) for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()

    def _file(self, path: Path) -> str:
        stat = path.stat()
        key = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if key not in self.known or time.time_ns() - stat.st_mtime_ns < self.SETTLED:
            self.known[key] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        return f"{path.relative_to(self.folder)} {self.known[key]}"


class Fuse:
    """Counts the lines that are about to be executed in some files; kills the process at one."""

    def __init__(
        self, places: tuple[str | Path, ...], fatal: int, world: World | None = None
    ) -> None:
        self.places = tuple(str(place) for place in places)
        self.fatal = fatal
        self.world = world
        self.lines: list[tuple[str, str]] = []
        self.known: dict[str, bool] = {}

    def enter(self, frame: FrameType, event: str, argument: object):
        name = frame.f_code.co_filename
        if name not in self.known:
            self.known[name] = name.startswith(self.places)
        return self.line if self.known[name] else None

    def line(self, frame: FrameType, event: str, argument: object):
        if event == "line":
            if len(self.lines) == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            left = self.world.digest() if self.world else ""
            self.lines.append((f"{frame.f_code.co_filename}:{frame.f_lineno}", left))
        return self.line


def forked(work: Callable[[], object]) -> tuple[int, object]:
    """The exit status of a child, negative for a signal, and what its work returned."""
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        child = os.fork()
        if child == 0:
            try:
                answer.write_text(json.dumps(work()))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, json.loads(answer.read_text()) if answer.exists() else None


def attempt(job: Job, fatal: int, world: World | None = None) -> list[tuple[str, str]]:
    """Register; returns the lines that were executed, unless one of them was fatal."""
    os.environ["PERENNIAL_RUN_ID"] = "run-1"
    fuse = Fuse((*OURS, *MLFLOWS) if job.inside else OURS, fatal, world)
    sys.settrace(fuse.enter)
    register_model_step(**job.arguments)
    sys.settrace(None)
    return fuse.lines


def seen() -> dict[str, str]:
    """What anybody finds who looks now: aliases; every version must be whole."""
    registry = open_registry(Environment.read())
    with TemporaryDirectory() as scratch:
        for version in registry.versions(NAME):
            folder = registry.download(version, Path(scratch))
            assert {path.name for path in folder.iterdir()} == FILES, version
            weights = (folder / WEIGHTS_FILE).read_bytes()
            record = Challenger.read(folder)
            assert hashlib.sha256(weights).hexdigest() == record.weights_sha256, version
            load_model(folder)
    numbers = {version.version for version in registry.versions(NAME)}
    aliases = registry.aliases(NAME)
    assert set(aliases.values()) <= numbers, aliases
    return {"versions": " ".join(sorted(numbers)), **aliases}


def watched(job: Job) -> dict[str, str]:
    """What a killed attempt left: nothing new, or a whole version that may be champion."""
    found = seen()
    old = [str(number + 1) for number in range(job.before)]
    new = [*old, str(job.before + 1)]
    assert found["versions"] in (" ".join(old), " ".join(new)), found
    assert found.get(CHAMPION, "") in ((old or [""])[-1], new[-1]), found
    return found


def retried(job: Job, run_id: str) -> None:
    """The attempt again: one more version, which is champion for a reason that is recorded."""
    os.environ["PERENNIAL_RUN_ID"] = run_id
    register_model_step(**job.arguments)
    found, new = seen(), str(job.before + 1)
    expected = " ".join(str(number + 1) for number in range(job.before + 1))
    assert found == {"versions": expected, CHAMPION: new, CHALLENGER: new}, found
    environment = Environment.read()
    stored = open_store(environment.store_uri).read(f"registry/{NAME}.json")
    assert AliasChange.from_json(stored).done
    version = open_registry(environment).version_by_alias(NAME, CHAMPION)
    assert VersionDecision.of(version.tags, "promoted") is not None


def begin(job: Job) -> None:
    """Make the world what it was before the attempt."""
    shutil.rmtree(job.home)
    shutil.copytree(job.template, job.home)
    for output in ("registration", "report"):
        Path(job.arguments[output]).unlink(missing_ok=True)


def try_point(job: Job, point: int) -> dict[str, object]:
    """Kill an attempt before its nth line, look, and repeat it, every other time as another run."""
    begin(job)
    killed, _ = forked(lambda: attempt(job, point))
    ended, left = forked(lambda: [watched(job), retried(job, f"run-{1 + point % 2}")][0])
    right = (killed, ended) == (-signal.SIGKILL, 0)
    return {"point": point, "right": right, "left": left}


def warm_up(job: Job) -> None:
    """Load all code and fill its caches, by an attempt beside the home, for what is forked."""
    place = {name: os.environ[name] for name in ("PERENNIAL_STORE_URI", "MLFLOW_TRACKING_URI")}
    with TemporaryDirectory() as scratch:
        shutil.copytree(job.template, Path(scratch) / "home")
        for name, value in place.items():
            os.environ[name] = value.replace(job.home, f"{scratch}/home")
        attempt(job, -1)
    os.environ.update(place)
    gc.collect()
    gc.freeze()


def main() -> None:
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    warm_up(job)
    if not job.points:
        begin(job)
        world = World(Path(job.home).parent) if job.inside else None
        print(json.dumps(forked(lambda: attempt(job, -1, world))[1]), flush=True)
    for point in job.points:
        print(json.dumps(try_point(job, point)), flush=True)


if __name__ == "__main__":
    main()
