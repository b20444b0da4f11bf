"""Stored steps: what each step of a run did; on a cluster in the object store beside its report.

Kubeflow keeps neither a failed step's message nor its report. From these records the run's page is
made, `perennial status` and `--wait` print the reasons, and a retry finds the error that it would
only repeat. Of a local run they are read from its journal (`runs.step_records`).
"""

import json
import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from perennial.clients.object_store import ConflictError, open_store
from perennial.clients.outages import errors_logged, is_outage
from perennial.contracts.artifact import Artifact
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section, canonical_json

# In flow order; a nested training repeats the first two with equal inputs and reuses them.
FLOW: dict[str, tuple[str, ...]] = {
    "continuous_training": (
        "snapshot_data",
        "validate_data",
        "check_skeleton",
        "train_model",
        "select_checkpoint",
        "evaluate_model",
        "register_model",
    ),
    "drift_monitoring": (
        "snapshot_data",
        "validate_data",
        "detect_drift",
        "decide_retraining",
        "check_skeleton",
        "train_model",
        "select_checkpoint",
        "evaluate_model",
        "register_model",
    ),
    "hyperparameter_study": (
        "snapshot_data",
        "validate_data",
        "check_skeleton",
        "run_trials",
        "analyze_study",
    ),
}
SHOWN = ("decision", "drift", "verdict", "registration", "judgement")
Result = TypeVar("Result", bound=Artifact)
logger = logging.getLogger(__name__)


class StoredStep(Section):
    """A step of a run."""

    step: str
    status: Literal["running", "finished", "reused", "failed", "stopped", "cancelled"]
    """On one machine, `reused` is finished in an earlier attempt, and `stopped` may go on."""
    began: float
    """Unix time, as `ended`."""
    ended: float = 0.0
    key: str = ""
    """Its folder below `steps/` of a local run."""
    log: str = ""
    """The file with the log of a local run's step."""
    pod: str = ""
    """The step's pod, by which its end is found when it was killed."""
    summary: str = ""
    results: dict[str, str] = Field(default_factory=dict)
    """What the run's verdict is made of, as JSON texts: `SHOWN` among its outputs."""
    problem: str = ""
    evidence: str = ""
    action: str = ""
    inputs: str = ""
    """Digest of a failed step's inputs and code where a repetition would fail in the same way; else
    empty."""

    @property
    def error(self) -> PerennialError:
        """The error that the step ended with."""
        return PerennialError(self.problem, evidence=self.evidence, action=self.action)

    @property
    def seconds(self) -> float:
        """How long it worked; 0 while it runs."""
        return max(0.0, self.ended - self.began)

    def result(self, kind: type[Result]) -> Result | None:
        """Return a result of the step; None without one that this code can read."""
        document = self.results.get(kind.document_name())
        try:
            return kind.from_json(document) if document else None
        except ValueError:  # of another version of Perennial: it must not hide the others
            return None

    def failed_with(self, error: BaseException, ended: float, inputs: str = "") -> "StoredStep":
        """Return the record of a step that ended with an error."""
        found = {"problem": f"{type(error).__name__}: {error}", "evidence": "", "action": ""}
        if isinstance(error, PerennialError):
            found = {name: getattr(error, name) for name in found}
        return self.model_copy(
            update={**found, "status": "failed", "ended": ended, "inputs": inputs}
        )


def is_final(error: BaseException) -> bool:
    """Whether the same attempt on the same inputs would fail again: the user must act first."""
    return isinstance(error, PerennialError) and not is_outage(error)


class StoredRun:
    """The records and pages of one run, below `reports/RUN/`.

    Writing never fails a step: what cannot be written is logged.
    """

    def __init__(self, store_uri: str, run_id: str) -> None:
        self.store_uri = store_uri
        self._run_id = run_id
        self._folder = f"reports/{run_id}"

    def write(self, record: StoredStep, page: bytes | None = None) -> str:
        """Store a step's record and page; return the page's address, empty without one."""
        with _logged(f"the record of the step {record.step}"):
            key = f"{self._folder}/{record.step}.json"
            open_store(self.store_uri).write(key, record.to_json().encode())
        return self.write_page(record.step, page) if page is not None else ""

    def write_page(self, name: str, page: bytes) -> str:
        """Store a page; return its address, empty if it cannot be stored."""
        key = f"{self._folder}/{name}.html"
        with _logged(f"report={key}"):
            open_store(self.store_uri).write(key, page)
            return f"{self.store_uri.rstrip('/')}/{key}"
        return ""

    def write_log(self, step: str, log: Path) -> None:
        """Store a step's log, which outlives its pod."""
        with _logged(f"the log of the step {step}"):
            open_store(self.store_uri).upload(f"{self._folder}/{step}.log", log)

    def logs(self) -> dict[str, str]:
        """Return step → log, of the steps that ended, in the order in which they began.

        Raises:
            PerennialError: the store cannot be read.
        """
        store = open_store(self.store_uri)
        found = {}
        for record in self.steps():
            content = store.read(f"{self._folder}/{record.step}.log")
            if content is not None:
                found[record.step] = content.decode(errors="replace")
        return found

    def page(self, name: str) -> str | None:
        """Return a stored page."""
        content = open_store(self.store_uri).read(f"{self._folder}/{name}.html")
        return content.decode(errors="replace") if content is not None else None

    def write_cancellation(self, by: str) -> None:
        """Store who cancels the run: Kubeflow does not record it."""
        with _logged("who cancelled the run"):
            open_store(self.store_uri).write(f"{self._folder}/cancelled-by", by.encode())

    def claim_trigger(self, trigger: str) -> str:
        """Return a trigger, marked as a clone's if another run was started with it first.

        The dashboard's "Clone run" passes the parameters of the first run on as they are.
        """
        try:
            found = json.loads(trigger)
        except ValueError:
            return trigger  # whoever reads it reports that
        request = found.get("request") if isinstance(found, dict) else None
        # A schedule's trigger is the same for all of its runs, and names no request.
        if not isinstance(request, str):
            return trigger
        with _logged("the request that started the run"):
            store, key = open_store(self.store_uri), f"reports/requests/{request}"
            try:
                store.replace(key, self._run_id.encode(), previous=None)
            except ConflictError:
                first = (store.read(key) or b"").decode(errors="replace")
                # A retry of the same run finds its own claim.
                if first != self._run_id:
                    return canonical_json({"trigger": "clone", "of_run": first, "original": found})
        return trigger

    def cancelled_by(self) -> str:
        """Return who cancelled the run; empty where that is not recorded."""
        with _logged("who cancelled the run"):
            content = open_store(self.store_uri).read(f"{self._folder}/cancelled-by") or b""
            return content.decode(errors="replace")
        return ""

    def step(self, name: str) -> StoredStep | None:
        """Return a step's record; None if it cannot be read."""
        with _logged(f"the record of the step {name}"):
            content = open_store(self.store_uri).read(f"{self._folder}/{name}.json")
            return StoredStep.from_json(content) if content is not None else None
        return None

    def steps(self) -> list[StoredStep]:
        """Return the records in the order in which the steps began.

        Raises:
            PerennialError: the store cannot be listed or read.
        """
        store = open_store(self.store_uri)
        found = []
        for item in store.list(f"{self._folder}/"):
            content = store.read(item.key) if Path(item.key).suffix == ".json" else None
            try:
                found += [StoredStep.from_json(content)] if content is not None else []
            except ValidationError as error:
                logger.warning("%s is not the record of a step: %s", item.key, error)
        return sorted(found, key=lambda record: record.began)


def _logged(what: str) -> AbstractContextManager[None]:
    return errors_logged(f"{what} is not in the object store")
