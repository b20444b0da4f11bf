"""Handover: exchange between the launcher and workers whose machines end with the job.

Everything goes through the object store: the job and the snapshot on the way there; on the way back
the rendezvous marker of the first rank, the marker of the first step, the curves, the ranks'
errors, the result, and the completion marker of the first rank. With a shared folder, nothing is
exchanged.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from perennial.clients.object_store import open_store
from perennial.clients.outages import single_attempts
from perennial.contracts.artifact import documents_in, write_atomically
from perennial.contracts.environment import data_cache
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import canonical_json
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import TrainingResult
from perennial.engine.job import JOB_FILE, AttemptEnd, Decision, Job, TrainingJob, read_job
from perennial.steps.background import running_beside

CURVES = "metrics.jsonl"
JOINED = "joined"
SIGN_OF_LIFE = "launcher"
SEND_SECONDS = 15.0
logger = logging.getLogger(__name__)


def is_remote(uri: str) -> bool:
    """Whether an address is in an object store."""
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme != "file"


def folder_for(uri: str) -> Path:
    """Return the local folder for copies of a store's address."""
    # By hand, as in `open_store`: in a key and in a path, #, ? and ; are letters like any other.
    return data_cache() / "stores" / uri.partition("://")[2].strip("/")


def hand_over(job: Job) -> None:
    """Upload what the workers of an attempt need."""
    if isinstance(job, TrainingJob):
        snapshot = documents_in(Path(job.snapshot))[Snapshot.document_name()]
        open_store(job.store_uri).write(Snapshot.file_name, canonical_json(snapshot).encode())
    open_store(job.attempt_uri).write(JOB_FILE, job.to_json().encode())


def receive_job(address: str) -> TrainingJob:
    """Load the training at an address, with its folders set to this machine's.

    Args:
        address: A file, or an object such as `s3://bucket/prefix/job.json`.

    Raises:
        PerennialError: there is no such job.
    """
    if not is_remote(address):
        return read_job(Path(address))
    job = fetch_job(address, TrainingJob)
    snapshot = open_store(job.store_uri).read(Snapshot.file_name)
    if snapshot is None:
        raise PerennialError(f"the training at {job.store_uri} has no {Snapshot.file_name}")
    write_atomically(job.root / "snapshot" / Snapshot.file_name, snapshot)
    return job.model_copy(update={"snapshot": str(job.root / "snapshot")})


J = TypeVar("J", bound=Job)


def fetch_job(address: str, kind: type[J]) -> J:
    """Load a job from the store, with a folder of this machine.

    Raises:
        PerennialError: there is no such job.
    """
    place, _, name = address.rpartition("/")
    content = open_store(place).read(name)
    if content is None:
        raise PerennialError(
            f"there is no {kind.kind} job at {address}",
            action="the launcher writes it before it creates the pods; was the store emptied?",
        )
    job = kind.from_json(content)
    return job.model_copy(update={"folder": str(folder_for(job.attempt_uri))})


def announce_rendezvous(job: Job) -> None:
    """Write the rendezvous marker; called by the first rank after the rendezvous.

    Raises:
        PerennialError: the store cannot be written to, where every checkpoint would have to go.
    """
    if job.attempt:
        open_store(job.attempt_uri).write(JOINED, b"")


def is_rendezvous_complete(job: Job) -> bool:
    """Whether the rendezvous of an attempt is complete: its marker or a first step exists."""
    store = open_store(job.attempt_uri)
    return any(store.read(name) is not None for name in (JOINED, job.first_step.name))


def write_heartbeat(job: Job, sign: str) -> None:
    """Write a heartbeat of the launcher for the ranks of an attempt; each one differs."""
    open_store(job.attempt_uri).write(SIGN_OF_LIFE, sign.encode())


def read_heartbeat(job: Job) -> bytes:
    """Return the latest heartbeat; empty before the first."""
    return open_store(job.attempt_uri).read(SIGN_OF_LIFE) or b""


def forget_attempt(job: Job) -> None:
    """Delete the markers of an attempt, because other ranks continue it."""
    store = open_store(job.attempt_uri)
    markers = [JOINED, job.first_step.name, AttemptEnd.file_name, f"logs/{CURVES}"]
    for key in [*markers, *(found.key for found in store.list("errors/"))]:
        store.delete(key)


def deliver(job: Job, *files: Path) -> None:
    """Upload files of the job's folder for the launcher and the other machines.

    A file that cannot be uploaded is lost; the training continues.
    """
    if not job.attempt:
        return
    for file in files:
        try:
            open_store(job.attempt_uri).upload(file.relative_to(job.root).as_posix(), file)
        except PerennialError as error:
            logger.warning("cannot upload %s: %s", file.name, error)


def fetch_errors(job: Job) -> None:
    """Download the errors and completion markers that other machines uploaded."""
    if not job.attempt:
        return
    try:
        store = open_store(job.attempt_uri)
        for found in store.list("errors/"):
            content = store.read(found.key)
            if content is not None:
                write_atomically(job.root / found.key, content)
    except PerennialError as error:
        logger.warning("cannot read what other ranks have written: %s", error)


def keep_result(job: TrainingJob) -> None:
    """Store the result beside the checkpoints, if these are not in the job's folder."""
    if job.store_uri:
        content = (job.root / TrainingResult.file_name).read_bytes()
        open_store(job.store_uri).write(TrainingResult.file_name, content)


def fetch_result(job: Job) -> bool:
    """Whether the job has a result, which is then copied to its folder."""
    if job.store_uri:
        content = open_store(job.store_uri).read(job.result_file)
        if content is None:
            return False
        write_atomically(job.root / job.result_file, content)
    return (job.root / job.result_file).exists()


def announce_end(job: Job, ranks: Sequence[int], *, is_finished: bool) -> None:
    """Write the completion marker; called by the first rank when all ranks have ended."""
    if job.attempt:
        end = AttemptEnd(attempt=job.attempt, is_finished=is_finished, ranks=tuple(ranks))
        open_store(job.attempt_uri).write(AttemptEnd.file_name, end.to_json().encode())


def read_end(job: Job) -> AttemptEnd | None:
    """Load the completion marker of an attempt; None without one."""
    content = open_store(job.attempt_uri).read(AttemptEnd.file_name)
    return None if content is None else AttemptEnd.from_json(content)


@contextmanager
def sending_curves(job: TrainingJob, rank: int) -> Iterator[None]:
    """Upload the points of the curves while the training runs."""
    if not job.attempt or rank > 0:
        yield
        return
    with running_beside(partial(_send_while_it_grows, job, job.logs / CURVES), "curves"):
        yield


def _send_while_it_grows(job: TrainingJob, file: Path, ended: threading.Event) -> None:
    sent, is_last = 0, False
    while not is_last:
        is_last = ended.wait(SEND_SECONDS)
        size = file.stat().st_size if file.exists() else 0
        if size > sent:
            with single_attempts():
                deliver(job, file)
            sent = size


D = TypeVar("D", bound=Decision)


def load_decision(job: TrainingJob, kind: type[D]) -> D | None:
    """Load what an earlier attempt decided; None without one."""
    content = open_store(job.store_uri).read(kind.file_name) if job.store_uri else None
    if content is not None:
        write_atomically(job.root / kind.file_name, content)
    if not (job.root / kind.file_name).exists():
        return None
    decision = kind.read(job.root)
    return decision if decision.fingerprint == job.fingerprint else None


def save_decision(job: TrainingJob, decision: Decision) -> None:
    """Store a decision."""
    decision.write(job.root)
    if job.store_uri:
        open_store(job.store_uri).write(decision.file_name, decision.to_json().encode())
