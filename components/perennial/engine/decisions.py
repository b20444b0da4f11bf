"""Decisions: what the first attempt settled, kept where every later one finds it.

In the training's folder, and in its object store where it has one: the folder may be another
machine's by the next attempt.
"""

from typing import TypeVar

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import write_atomically
from perennial.engine.job import Decision, TrainingJob

D = TypeVar("D", bound=Decision)


def known(job: TrainingJob, kind: type[D]) -> D | None:
    """What an earlier attempt settled; None when there was none."""
    content = open_store(job.store_uri).read(kind.file_name) if job.store_uri else None
    if content is not None:
        write_atomically(job.root / kind.file_name, content)
    if not (job.root / kind.file_name).exists():
        return None
    decision = kind.read(job.root)
    return decision if decision.fingerprint == job.fingerprint else None


def keep(job: TrainingJob, decision: Decision) -> None:
    """Store what was settled."""
    decision.write(job.root)
    if job.store_uri:
        open_store(job.store_uri).write(decision.file_name, decision.to_json().encode())
