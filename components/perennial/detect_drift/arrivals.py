"""Arrivals: the order in which partition files arrived, stored in the object store."""

from collections.abc import Mapping, Sequence

from perennial.clients.object_store import ObjectStore, StoredRecord
from perennial.contracts.block import by_name
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot


class ArrivedFiles(Section):
    """All files of a model's data that monitoring has read."""

    schema_version: int = 1
    """Incremented when a field changes its meaning."""
    sha256: tuple[str, ...] = ()
    """In order of the first snapshots that contained them; within one snapshot by name."""


def record_arrivals(
    store: ObjectStore, model: str, snapshots: Sequence[Snapshot]
) -> Mapping[str, int]:
    """Record new files; return every file's position in the order of arrival.

    Args:
        store: Holds the order, as `monitoring/<model>/files.json`.
        model: The registered model's name.
        snapshots: The oldest first.

    Returns:
        SHA-256 → position. A file that was rewritten counts as another file.

    Raises:
        PerennialError: the record is damaged, or other writers keep conflicting.
    """

    def with_new(stored: ArrivedFiles | None) -> tuple[ArrivedFiles, Mapping[str, int]]:
        order = dict.fromkeys((stored or ArrivedFiles()).sha256)
        for snapshot in snapshots:
            files = dict(zip(snapshot.paths, snapshot.files, strict=True))
            order |= dict.fromkeys(files[path].sha256 for path in sorted(files, key=by_name))
        places = {digest: place for place, digest in enumerate(order)}
        return ArrivedFiles(sha256=tuple(order)), places

    return StoredRecord(
        store, f"monitoring/{model}/files.json", ArrivedFiles,
        f"the order in which the files of {model} arrived",
        "delete it: the next monitoring orders the files of each snapshot by name",
    ).update(with_new)  # fmt: skip
