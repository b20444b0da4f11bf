"""Jobs: everything a worker of a training or a scoring needs, and its files. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, JsonValue
from typing_extensions import override

from perennial.contracts.artifact import Artifact
from perennial.contracts.data import ModelSection
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial_model import InitialModel, Teachers
from perennial.contracts.section import Section, TaskState, digest_of
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Halving, TrainingResult
from perennial.engine.config.training import TrainingSection

JOB_FILE = "job.json"
EXIT_INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: stopped at a checkpoint, start me again


class ShorterTraining(Section):
    """A training that another one extends: equal to it but for its length."""

    steps: int
    fingerprint: str
    checkpoints_uri: str


class Job(Section):
    """What a launcher runs, as a JSON file: the one argument of the program on each rank."""

    kind: ClassVar[str]
    """What is done, in one word; the names of jobs on a cluster begin with it."""
    again: ClassVar[str]
    """What running the step again does, for messages."""
    result_file: ClassVar[str]
    """Name of the file that the first rank writes when all is done."""

    fingerprint: str
    """Digest of everything that determines the result."""
    model: ModelSection
    num_processes: int
    folder: str
    """Folder of the logs and the result, and of what else the job writes."""
    store_uri: str = ""
    """Address of the results if they are in an object store: `s3://bucket/prefix`."""
    attempt: str = ""
    """Name of the attempt if its machines end with it; its files are then uploaded to the store.
    Empty if the folder is permanent."""
    unattended_seconds: float = 0.0
    """How long an attempt continues without a heartbeat of a launcher; 0 means without limit."""

    @property
    def program(self) -> str:
        """Return the module that each rank runs."""
        raise NotImplementedError

    @property
    def root(self) -> Path:
        """Return the job's folder."""
        return Path(self.folder)

    @property
    def attempt_uri(self) -> str:
        """Return the address for files that must outlive the attempt's machines."""
        return f"{self.store_uri}/attempts/{self.attempt}"

    @property
    def address(self) -> str:
        """Return the job's address for workers on other machines."""
        return f"{self.attempt_uri}/{JOB_FILE}"

    @property
    def errors(self) -> Path:
        """Return the folder of the errors that ended ranks of the current attempt."""
        return self.root / "errors"

    @property
    def interrupted(self) -> Path:
        """Return the marker that a signal stopped the current attempt at a checkpoint."""
        return self.root / "interrupted"

    @property
    def first_step(self) -> Path:
        """Return the marker that the current attempt has finished its first step."""
        return self.root / "first-step"

    @property
    def rendezvous(self) -> Path:
        """Return the file by which the current attempt's ranks on one machine join."""
        return self.root / "rendezvous"

    @property
    def logs(self) -> Path:
        """Return the folder of the launcher's `job.log` and one `rank-N.log` per process."""
        return self.root / "logs"


class TrainingJob(Job):
    """The one argument of `python -m perennial.engine.worker`.

    A checkpoint with another fingerprint is refused. `store_uri` is the address of the checkpoints,
    if they are in an object store.
    """

    kind: ClassVar[str] = "training"
    again: ClassVar[str] = "resume from the last checkpoint"
    result_file: ClassVar[str] = TrainingResult.file_name

    snapshot: str
    """Folder of the snapshot artifact."""
    training: TrainingSection
    initial: InitialModel | None = None
    """Weights to start with; None for random ones."""
    teachers: Teachers | None = None
    """Versions to learn from; None without distillation."""
    shared: str = ""
    """Folder of this machine for the fitted state and the encoded splits, which trainings of the
    same data, task options and code share; empty: the job has its own."""
    common: str = ""
    """Address of the store for what all trainings share: what is known of row groups, and rows that
    were encoded ahead; empty: the training keeps it for itself."""
    contract: dict[str, JsonValue] = Field(default_factory=dict)
    """The settings whose digest is the fingerprint, by name."""
    extended: tuple[ShorterTraining, ...] = ()
    """Trainings of `training.extended_from`, longest first: this one starts from their newest
    checkpoint."""

    @property
    @override
    def program(self) -> str:
        return "perennial.engine.worker"

    @property
    def checkpoints(self) -> Path:
        """Return the folder with one folder per checkpoint."""
        return self.root / "checkpoints"

    @property
    def checkpoints_uri(self) -> str:
        """Return the address of the checkpoint store; `checkpoints` may contain copies."""
        return f"{self.store_uri}/checkpoints" if self.store_uri else str(self.checkpoints)

    @property
    def common_uri(self) -> str:
        """Return the address of the store for what all trainings share."""
        return self.common or self.store_uri or str(self.root / "common")

    @property
    def scratch(self) -> Path:
        """Return the folder of encoded splits, deleted after the last attempt."""
        return self.root / ".scratch"


class ScoringResult(Artifact):
    """What the processes of a scoring on several machines have found.

    File tree: `scored.json`; the files lie below `results/` of the attempt.
    """

    file_name: ClassVar[str] = "scored.json"

    attempt: str
    place: str
    """Folder on the first rank's machine in which the files were; `found` names it."""
    found: tuple[str, ...]
    """The results as JSON, in order."""
    files: dict[str, str]
    """Path below the folder → SHA-256."""


class ScoringJob(Job):
    """Scoring by processes of several machines, which divide the model's weights."""

    kind: ClassVar[str] = "scoring"
    again: ClassVar[str] = "score again"
    result_file: ClassVar[str] = ScoringResult.file_name

    module: Annotated[str, Field(pattern=r"^perennial(\.[a-z_]+)+$")]
    """Module of Perennial whose `main` scores."""
    request: str
    """Its request as JSON; paths in it are those of the step's machine."""
    inputs: dict[str, dict[str, str]]
    """Option of the request that names a folder or file → path below it → SHA-256; the path of a
    file is empty."""

    @property
    @override
    def program(self) -> str:
        return "perennial.engine.scoring_worker"


class Decision(Artifact):
    """Decisions of the first attempt, reused by every later attempt."""

    fingerprint: str
    """Fingerprint of the training."""


class FittedTask(Decision):
    """The fitted state of the task.

    File tree: `fitted.json`.
    """

    file_name: ClassVar[str] = "fitted.json"

    state: TaskState


class PassSize(Decision):
    """The size of forward passes after some ran out of memory.

    File tree: `pass_size.json`.
    """

    file_name: ClassVar[str] = "pass_size.json"

    asked: int
    """The contract's `micro_batch_size` with which memory ran out; another one is tried again."""
    halvings: tuple[Halving, ...] = ()

    def applied(self, job: TrainingJob) -> TrainingJob:
        """Return the job with passes of this size."""
        if not self.halvings:
            return job
        rows = {"micro_batch_size": self.halvings[-1].next_rows}
        return job.model_copy(update={"training": job.training.model_copy(update=rows)})


class RankFailure(Section):
    """The exception that ended one rank."""

    rank: int
    step: int
    """The current update; 0 before the first."""
    type: str
    message: str
    traceback: str
    time: float
    """Seconds since the epoch."""
    is_consequence: bool
    """The rank only lost its connection to another one, or waited for it."""
    is_hang: bool = False
    """It was ended because of a hang: another attempt may succeed."""
    is_outage: bool = False
    """A service did not answer; the task is not the cause."""
    halving: Halving | None = None
    """The smaller passes with which the training may go on; it ran out of memory otherwise."""

    @classmethod
    def first_of(cls, folder: Path) -> Self | None:
        """Return the failure that caused the others; None when no rank recorded one."""
        failures = [cls.from_json(path.read_bytes()) for path in folder.glob("rank-*.json")]
        return min(failures, key=lambda found: (found.is_consequence, found.time), default=None)


class JobFailure(Artifact):
    """Why the last failed attempt failed.

    File tree: `error.json`.
    """

    file_name: ClassVar[str] = "error.json"

    reason: str
    """The failure in one line, with the consequence."""
    first: RankFailure | None
    """The exception that caused the others; None when all ranks were killed from outside."""
    silent_ranks: tuple[int, ...]
    """Ranks that ended without an exception: usually killed."""

    @classmethod
    def of(cls, job: Job, reason: str) -> Self:
        """Return the records of the ranks of an attempt."""
        spoke = {int(path.stem.removeprefix("rank-")) for path in job.errors.glob("rank-*.json")}
        return cls(
            reason=reason,
            first=RankFailure.first_of(job.errors),
            silent_ranks=tuple(sorted(set(range(job.num_processes)) - spoke)),
        )


class AttemptEnd(Artifact):
    """Completion marker of an attempt, written by the first rank after all ranks have ended.

    File tree: `ended.json`. A job whose first pod has ended is reported as succeeded; only this
    marker proves it.
    """

    file_name: ClassVar[str] = "ended.json"

    attempt: str
    is_finished: bool
    """Whether the training is finished; else a signal stopped it at a checkpoint."""
    ranks: tuple[int, ...]
    """Ranks that reported their end."""


def training_contract(
    snapshot: Snapshot,
    model: ModelSection,
    training: TrainingSection,
    code_digest: str,
    initial: InitialModel | None = None,
    *,
    teachers: Teachers | None = None,
) -> dict[str, JsonValue]:
    """Return everything that determines the weights, except how the work is divided.

    Equal contracts mean the same training: the same batches in the same order. Processes, threads
    and options marked `Layout` are left out, so that it resumes on other resources; they change the
    order of summation, and equal ones mean bit-identical weights.
    """
    pinned = {"initial": initial, "teachers": teachers}
    identities: dict[str, JsonValue] = {
        name: each.identity() for name, each in pinned.items() if each
    }
    return {
        "snapshot": snapshot.digest(),
        "model": {"task": model.task, "options": dict(model.options)},
        "training": training.without_layout(),
        "code": code_digest,
        **identities,
    }


def training_fingerprint(contract: Mapping[str, JsonValue]) -> str:
    """Return the digest of a training's contract."""
    return digest_of(dict(contract))


def read_job(path: Path) -> TrainingJob:
    """Load the job from a file.

    Raises:
        PerennialError: there is no such file.
    """
    if not path.is_file():
        raise PerennialError(
            f"there is no training job in {path}",
            action="the worker is started by train_model; its one argument is the job's JSON file",
        )
    return TrainingJob.from_json(path.read_bytes())
