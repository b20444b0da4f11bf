"""Training job: all that a worker needs to know, and where its files lie. Imports no torch."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, JsonValue

from perennial.contracts.artifact import Artifact
from perennial.contracts.data import ModelSection
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section, canonical_json
from perennial.contracts.snapshot import Snapshot
from perennial.engine.config import TrainingSection

JOB_FILE = "job.json"
EXIT_INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: stopped at a checkpoint, start me again


class TrainingJob(Section):
    """The one argument of `python -m perennial.engine.worker`, as a JSON file."""

    fingerprint: str
    """Digest of all that determines the weights; a checkpoint with another one is refused."""
    snapshot: str
    """Folder of the snapshot artifact."""
    model: ModelSection
    training: TrainingSection
    num_processes: int
    folder: str
    """Where checkpoints, logs and the result of this training live."""
    store_uri: str = ""
    """Where checkpoints live instead, when that is not a folder: `s3://bucket/prefix`."""
    attempt: str = ""
    """Name of the attempt when its machines go away with it: what others must see of it goes to
    the store. Empty where the folder stays."""
    unattended_seconds: float = 0.0
    """How long the ranks of an attempt go on without a sign of life of a launcher; 0 never ends."""
    contract: dict[str, JsonValue] = Field(default_factory=dict)
    """What the fingerprint is the digest of, by name."""

    @property
    def root(self) -> Path:
        """The training's folder."""
        return Path(self.folder)

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint."""
        return self.root / "checkpoints"

    @property
    def checkpoints_uri(self) -> str:
        """Where checkpoints are kept; copies of them may lie in `checkpoints`."""
        return f"{self.store_uri}/checkpoints" if self.store_uri else str(self.checkpoints)

    @property
    def attempt_uri(self) -> str:
        """Where the attempt leaves what must outlive its machines."""
        return f"{self.store_uri}/attempts/{self.attempt}"

    @property
    def address(self) -> str:
        """Where the workers of an attempt on other machines find the job."""
        return f"{self.attempt_uri}/{JOB_FILE}"

    @property
    def errors(self) -> Path:
        """What the ranks of the current attempt died of."""
        return self.root / "errors"

    @property
    def interrupted(self) -> Path:
        """Written when the current attempt stopped behind a checkpoint because of a signal."""
        return self.root / "interrupted"

    @property
    def first_step(self) -> Path:
        """Written when the current attempt has finished its first step."""
        return self.root / "first-step"

    @property
    def logs(self) -> Path:
        """`job.log` of the launcher and one `rank-N.log` per process."""
        return self.root / "logs"

    @property
    def scratch(self) -> Path:
        """Encoded splits; deleted when no attempt follows. Hidden from listings of the store."""
        return self.root / ".scratch"


class Decision(Artifact):
    """What was settled when the training began; every later attempt takes it over."""

    fingerprint: str
    """Of the training that it was settled for."""


class FittedTask(Decision):
    """What the task fitted.

    File tree: `fitted.json`.
    """

    file_name: ClassVar[str] = "fitted.json"

    state: dict[str, JsonValue]


class RankFailure(Section):
    """The exception that ended one rank."""

    rank: int
    step: int
    """The update that was being computed; 0 before the first."""
    type: str
    message: str
    traceback: str
    time: float
    """Seconds since the epoch."""
    is_consequence: bool
    """The rank only lost its connection to another one, or waited for it."""
    is_hang: bool = False
    """It was ended because nothing moved: another attempt may."""
    is_outage: bool = False
    """A service did not answer, which says nothing about the task."""

    @classmethod
    def first_of(cls, folder: Path) -> Self | None:
        """The failure that the others followed from; None when no rank left one."""
        failures = [cls.from_json(path.read_bytes()) for path in folder.glob("rank-*.json")]
        return min(failures, key=lambda found: (found.is_consequence, found.time), default=None)


class JobFailure(Artifact):
    """Why the last attempt that failed did.

    File tree: `error.json`.
    """

    file_name: ClassVar[str] = "error.json"

    reason: str
    """In one line, with what becomes of it."""
    first: RankFailure | None
    """The exception that the others followed from; None when all ranks were killed from outside."""
    silent_ranks: tuple[int, ...]
    """Those that ended without an exception of their own: killed, most often."""

    @classmethod
    def of(cls, job: TrainingJob, reason: str) -> Self:
        """What the ranks of an attempt left behind."""
        spoke = {int(path.stem.removeprefix("rank-")) for path in job.errors.glob("rank-*.json")}
        return cls(
            reason=reason,
            first=RankFailure.first_of(job.errors),
            silent_ranks=tuple(sorted(set(range(job.num_processes)) - spoke)),
        )


class AttemptEnd(Artifact):
    """The first rank's word that an attempt ended in order, given after every rank's.

    File tree: `ended.json`. A job whose first pod has ended claims to have succeeded; this is what
    proves it.
    """

    file_name: ClassVar[str] = "ended.json"

    attempt: str
    is_finished: bool
    """Whether the training is; else a signal stopped it behind a checkpoint."""
    ranks: tuple[int, ...]
    """Those that said so."""


def training_contract(
    snapshot: Snapshot,
    model: ModelSection,
    training: TrainingSection,
    *,
    num_processes: int,
    threads_per_process: int,
    code_digest: str,
) -> dict[str, JsonValue]:
    """All that determines the weights: equal contracts mean bit-identical ones.

    The number of processes and threads is part of it: both change the order of summation.
    """
    return {
        "snapshot": snapshot.digest(),
        "model": {"task": model.task, "options": dict(model.options)},
        "training": training.model_dump(mode="json"),
        "resources": {"num_processes": num_processes, "threads_per_process": threads_per_process},
        "code": code_digest,
    }


def training_fingerprint(contract: Mapping[str, JsonValue]) -> str:
    """The digest of a training's contract."""
    return hashlib.sha256(canonical_json(dict(contract)).encode()).hexdigest()


def read_job(path: Path) -> TrainingJob:
    """The job stored in a file.

    Raises:
        PerennialError: there is no such file.
    """
    if not path.is_file():
        raise PerennialError(
            f"there is no training job in {path}",
            action="the worker is started by train_model; its one argument is the job's JSON file",
        )
    return TrainingJob.from_json(path.read_bytes())
