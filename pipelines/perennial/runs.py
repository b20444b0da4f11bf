"""Runs: the folder of each local run, what it records, and which run a command continues."""

import hashlib
import importlib.util
import logging
import os
import secrets
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import unquote, urlparse

from perennial import contracts
from perennial.clients.object_store import LocalObjectStore, open_store
from perennial.contract import Contract
from perennial.contracts.artifact import Artifact, own_document
from perennial.contracts.environment import STORE_URI, TRACKING_URI, Environment, without_login
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import TrainingResult
from perennial.engine.sources import sources_below
from perennial.steps.journal import Journal
from perennial.steps.lease import is_held
from perennial.steps.parameters import LargeParameter, resolve
from perennial.steps.stored_steps import FLOW, SHOWN, StoredStep

RunStatus = Literal["running", "succeeded", "failed", "interrupted"]
logger = logging.getLogger(__name__)

# What enters the numbers besides our own sources.
NUMERIC_PACKAGES = (
    *("numpy", "polars", "scikit-learn", "scipy", "torch"),
    # Of extras: what encodes pictures and texts, and builds models, adapters and optimizers.
    *("peft", "pillow", "tokenizers", "torchao", "transformers"),
)


class RunRecord(Artifact):
    """One local run.

    File tree: `run.json`, `sources.json`, `pipeline.yaml` (what is executed), `events.jsonl`,
    `driver.log` (everything printed), `steps/<step>-<inputs>/` (log, outputs and report of each
    step), `report.html`.
    """

    file_name: ClassVar[str] = "run.json"

    run_id: str
    pipeline: Literal["continuous_training", "drift_monitoring", "hyperparameter_study"]
    model: str
    contract_digest: str
    code_digest: str
    """Digest of the sources when the run was made; with other sources nothing can be reused."""
    status: RunStatus
    created: datetime
    number: int = 0
    """Counts the runs of the home: clocks are set back. 0 in runs of earlier versions."""
    attempts: int
    parameters: dict[str, str]
    """The pipeline's parameters."""

    @property
    def order(self) -> tuple[int, datetime]:
        """Place among the runs of the home, for sorting."""
        return self.number, self.created

    @property
    def data_uri(self) -> str:
        """The dataset that the run reads."""
        return Contract.from_json(resolve(self.parameters["contract"])).data.uri


@dataclass(frozen=True)
class Home:
    """Home folder of local runs: object store, MLflow, run folders."""

    path: Path

    @property
    def store_uri(self) -> str:
        """The object store: a folder, unless the environment names another."""
        return os.environ.get(STORE_URI) or str(self.path / "store")

    @property
    def tracking_uri(self) -> str:
        """MLflow: an sqlite database, unless the environment names another.

        Raises:
            PerennialError: the home's path cannot be written in a database's address.
        """
        if found := os.environ.get(TRACKING_URI):
            return found
        # SQLAlchemy decodes %20, and begins options at a ?: another file, or none, would be opened.
        changed = set("%?").intersection(str(self.path))
        if changed:
            raise PerennialError(
                f"the home {self.path} has {' and '.join(sorted(changed))} in its path",
                evidence="the address of MLflow's database in it would mean another file",
                action=f"choose another folder with --home, or name an MLflow in {TRACKING_URI}",
            )
        # MLflow writes this folder into a statement of SQL, in the quotes that it does not hold.
        if {"'", '"'} <= set(str(Path.cwd())):
            raise PerennialError(
                f"the current folder {Path.cwd()} has both kinds of quotes in its path",
                evidence="MLflow cannot make its database from there",
                action="change to another folder, and name the contract and --home by their paths",
            )
        return f"sqlite:///{self.path / 'mlflow.db'}"

    @property
    def shown_tracking_uri(self) -> str:
        """The address of MLflow for people and logs."""
        return without_login(self.tracking_uri)

    @property
    def environment(self) -> Environment:
        """The addresses of store and MLflow, as steps receive them."""
        return Environment(self.store_uri, self.tracking_uri)

    def require_its_place(self, model: str) -> None:
        """Refuse a home that was moved or copied: MLflow records where files are in full.

        Raises:
            PerennialError: a run would write beside the store, and find no champion.
        """
        database = self.path / "mlflow.db"
        if self.tracking_uri != f"sqlite:///{database}" or not database.exists():
            return
        address = f"{database.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True)) as connection:
                found = connection.execute(
                    "SELECT artifact_location FROM experiments WHERE name = ?", (model,)
                ).fetchone()
        except sqlite3.DatabaseError:  # whoever uses it says more
            return
        recorded = Path(unquote(urlparse(found[0]).path)) if found else None
        store = open_store(self.store_uri)
        if recorded is None or not isinstance(store, LocalObjectStore):
            return
        if not recorded.resolve().is_relative_to(store.root.resolve()):
            former = recorded.parents[2]
            link = shlex.join(["ln", "-s", str(self.path), str(former)])
            raise PerennialError(
                f"the home {self.path} was moved or copied: the models of {model} are recorded "
                f"in {former}",
                evidence=f"MLflow's experiment {model} writes to {recorded}",
                action=f"move it back, or let the former place lead here: {link}; a copy that is "
                f"to begin without models is to be a new folder, not this one",
            )

    def folder(self, run_id: str) -> Path:
        """Return a run's folder."""
        return self.path / "runs" / run_id

    def lock_folder(self, model: str) -> Path:
        """Return the folder of the lock that one run of a model at a time holds."""
        return self.path / "locks" / model

    def is_active(self, model: str) -> bool:
        """Whether a run of the model is under way."""
        return is_held(self.lock_folder(model))

    def runs(self) -> list[RunRecord]:
        """Return every run whose record can be read, oldest first; name the others in a warning."""
        found = []
        for path in (self.path / "runs").glob(f"*/{RunRecord.file_name}"):
            try:
                found.append(RunRecord.read(path.parent))
            except PerennialError as error:  # of one run must not block all other runs and models
                logger.warning("the run in %s is left out: %s", path.parent, error.problem)
        return sorted(found, key=lambda run: run.order)

    def new_run(self, contract: Contract, pipeline: str, code: str) -> RunRecord:
        """Make a run's folder and first record."""
        now = datetime.now(UTC)
        run = RunRecord.model_validate(
            {
                "run_id": f"{contract.model.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
                "pipeline": pipeline,
                "model": contract.model.name,
                "contract_digest": contract.digest(),
                "code_digest": code,
                "status": "running",
                "created": now,
                # By the clock alone, a run would come before those that a clock ahead dated.
                "number": 1 + max((each.number for each in self.runs()), default=0),
                "attempts": 0,
                "parameters": {
                    "contract": LargeParameter(contract.to_json(), self.store_uri).store()
                },
            }
        )
        run.write(self.folder(run.run_id))
        return run

    def unfinished_run(self, contract: Contract, pipeline: str, code: str) -> RunRecord | None:
        """Return the newest run of this contract and code, to continue, if it did not end well."""
        matching = self._runs_of(contract, pipeline, code)
        # Only the newest: an older one was left unfinished on purpose, by --new.
        return matching[-1] if matching and matching[-1].status != "succeeded" else None

    def latest_run(self, contract: Contract, pipeline: str, code: str) -> RunRecord:
        """Return the newest run of this contract and code, whatever became of it.

        Raises:
            PerennialError: there is none.
        """
        matching = self._runs_of(contract, pipeline, code)
        if not matching:
            raise PerennialError(
                "no earlier run has exactly this contract and code",
                evidence=f"{len(self.runs())} runs in {self.path}",
                action="run it once without --from",
            )
        return matching[-1]

    def forget_from(self, run: RunRecord, step: str) -> None:
        """Drop the results of a step and of all later ones, so that they run again.

        Raises:
            PerennialError: the pipeline has no such step.
        """
        flow = FLOW[run.pipeline]
        if step not in flow:
            raise PerennialError(
                f"{run.pipeline} has no step {step!r}", action=f"name one of: {', '.join(flow)}"
            )
        for name in flow[flow.index(step) :]:
            for folder in (self.folder(run.run_id) / "steps").glob(f"{name}-*"):
                if name == "train_model" and (folder / "training").exists():
                    # Else the step finds the finished training by its fingerprint and reuses it.
                    fingerprint = TrainingResult.read(folder / "training").fingerprint
                    store = open_store(self.store_uri)
                    for item in store.list(f"training/{fingerprint[:16]}/"):
                        store.delete(item.key)
                shutil.rmtree(folder)

    def _runs_of(self, contract: Contract, pipeline: str, code: str) -> list[RunRecord]:
        wanted = (pipeline, contract.digest(), code)
        return [
            run
            for run in self.runs()
            if (run.pipeline, run.contract_digest, run.code_digest) == wanted
        ]


def step_records(folder: Path) -> list[StoredStep]:
    """Return the steps of the latest attempt, in the order they started."""
    records: dict[str, StoredStep] = {}
    for event, _ in Journal(folder).events():
        step, key, log, summary, error = (
            str(event.get(name, "")) for name in ("step", "key", "log", "summary", "error")
        )
        moment, kind = float(str(event["time"])), str(event["kind"]).removeprefix("step_")
        match kind:
            case "run":  # a new attempt journals again what it reuses
                records = {}
            case "started":
                records[key] = StoredStep(
                    step=step, status="running", began=moment, key=key, log=log
                )
            case "finished" | "failed" | "stopped" if key in records:
                end = {"status": kind, "ended": moment, "summary": summary, "problem": error}
                records[key] = records[key].model_copy(update=end)
            case "reused" if key not in records:
                records[key] = StoredStep(
                    step=step, status="reused", began=moment, key=key, summary=summary
                )
    return [
        record.model_copy(update={"results": _results(folder / "steps" / record.key)})
        for record in records.values()
    ]


def _results(step: Path) -> dict[str, str]:
    """Return what the run's verdict is made of, among a step's outputs; damaged ones are empty."""
    found = {}
    for name in SHOWN:
        with suppress(FileNotFoundError):
            try:
                found[name] = own_document(step / name, name)
            except (ValueError, KeyError):
                found[name] = ""
    return found


def run_seconds(folder: Path) -> float:
    """Return seconds from the start of the latest attempt to its last event."""
    started = ended = 0.0
    for event, _ in Journal(folder).events():
        ended = float(str(event["time"]))
        started = ended if event["kind"] == "run" else started or ended
    return ended - started


def code_digest(contract: Contract, search_path: Sequence[Path]) -> str:
    """Return a digest of all that can change a result: our sources, the task's, and packages.

    Files count by their path below ours and below the task's folder, so that the same sources have
    the same digest wherever they lie.
    """
    ours = [*_own_sources()]
    folder, own = _task_sources(contract.model.task.partition(":")[0], search_path)
    digest = hashlib.sha256()
    for files in (ours, [(folder, file) for file in own]):
        for name, file in sorted((file.relative_to(base).as_posix(), file) for base, file in files):
            digest.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    for package in NUMERIC_PACKAGES:
        with suppress(PackageNotFoundError):
            digest.update(f"{package}=={version(package)}".encode())
    return digest.hexdigest()


def imported_sources(contract: Contract, search_path: Sequence[Path]) -> set[Path]:
    """Return the sources that a run imports: ours, the task's, and what that imports beside it."""
    module = contract.model.task.partition(":")[0]
    folder, files = _task_sources(module, search_path)
    used = sources_below(folder, module) if folder in search_path else files
    return {file for _, file in _own_sources()} | {*used}


def _own_sources() -> Iterator[tuple[Path, Path]]:
    """Yield each of our sources, after the folder of ours that it lies below."""
    # One folder where it is installed, two in its repository.
    for root in {Path(module).resolve().parent for module in (__file__, contracts.__path__[0])}:
        yield from ((root, file) for file in root.rglob("*.py"))


def _task_sources(module: str, search_path: Sequence[Path]) -> tuple[Path, list[Path]]:
    """Return the folder of a task's module, and the sources that belong to it."""
    top = module.partition(".")[0]
    for folder in search_path:
        package = folder / top
        if (folder / f"{top}.py").is_file() or (package.is_dir() and any(package.rglob("*.py"))):
            # With the modules and packages beside it: the task may import them.
            return folder, _importable_sources(folder)
    found = importlib.util.find_spec(top)
    if found is None:
        return Path(), []
    packages = [Path(place) for place in found.submodule_search_locations or ()]
    if packages:
        return packages[0], [*packages[0].rglob("*.py")]
    source = Path(found.origin or "")
    return source.parent, [source]


def _importable_sources(folder: Path) -> list[Path]:
    """Return each source that can be imported from a folder; `__init__.py` is not needed."""
    found = [*folder.glob("*.py")]
    for package in folder.glob("*"):
        if not package.name.isidentifier():
            continue
        for place, inside, files in os.walk(package):
            # A home's copies of code lie below names that cannot be imported.
            inside[:] = [name for name in inside if name.isidentifier()]
            found += [Path(place, name) for name in files if name.endswith(".py")]
    return found


def age(moment: float) -> str:
    """Return how long ago a moment was, in words."""
    seconds = max(time.time() - moment, 0.0)
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
