"""Last snapshot: notices partitions that the dataset had and lost, since it is append-only."""

import logging

from perennial.clients.object_store import ObjectStore
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.data.partitions import lost_line

logger = logging.getLogger(__name__)


class LastSnapshot(Section):
    """The newest snapshot of a model; stored as `snapshots/last/<model>.json`."""

    snapshot_digest: str


def compare_with_last(store: ObjectStore, model: str, snapshot: Snapshot) -> str:
    """Record a model's snapshot as its last one; return what the one before had and this lacks.

    Empty for a first snapshot. A record that cannot be read stops nothing: it is logged.
    """
    key = f"snapshots/last/{model}.json"
    lost, content = "", store.read(key)
    if content is not None:
        try:
            last = LastSnapshot.from_json(content).snapshot_digest
            then = Snapshot.from_json(store.read(f"snapshots/{last}/{Snapshot.file_name}") or b"")
            lost = lost_line(snapshot, then)
        except ValueError as error:
            logger.warning("%s/%s, lost partitions are not noticed: %s", store.uri, key, error)
    if lost:
        logger.warning("dataset=%s of the last snapshot of %s, %s", snapshot.data.uri, model, lost)
    record = LastSnapshot(snapshot_digest=snapshot.digest()).to_json().encode()
    if record != content:
        store.write(key, record)
    return lost
