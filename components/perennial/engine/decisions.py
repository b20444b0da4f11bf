"""Decisions: values that the first attempt decides and later attempts reuse.

Stored in the training's folder, and in its object store if there is one: the next attempt may run
on another machine.
"""

from typing import TypeVar

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import write_atomically
from perennial.engine.job import Decision, TrainingJob

D = TypeVar("D", bound=Decision)


def known(job: TrainingJob, kind: type[D]) -> D | None:
    """Load what an earlier attempt decided; None without one."""
    content = open_store(job.store_uri).read(kind.file_name) if job.store_uri else None
    if content is not None:
        write_atomically(job.root / kind.file_name, content)
    if not (job.root / kind.file_name).exists():
        return None
    decision = kind.read(job.root)
    return decision if decision.fingerprint == job.fingerprint else None


def keep(job: TrainingJob, decision: Decision) -> None:
    """Store a decision."""
    decision.write(job.root)
    if job.store_uri:
        open_store(job.store_uri).write(decision.file_name, decision.to_json().encode())
