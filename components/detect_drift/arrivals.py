"""The order in which partition files arrived, kept in the object store: names need not tell it."""

from collections.abc import Mapping, Sequence

from components.clients.object_store import ConflictError, ObjectStore
from components.contracts.block import by_name
from components.contracts.errors import PerennialError
from components.contracts.section import Section
from components.contracts.snapshot import Snapshot

MAX_ATTEMPTS = 20
"""Other runs that may record files in between before this one stops."""


class ArrivedFiles(Section):
    """Every file of a model's data that monitoring has seen."""

    schema_version: int = 1
    """Raised when a field changes its meaning."""
    sha256: tuple[str, ...] = ()
    """In order of the snapshots that showed them first; within one snapshot by name."""


def record_arrivals(
    store: ObjectStore, model: str, snapshots: Sequence[Snapshot]
) -> Mapping[str, int]:
    """Add the files that were never seen before; returns every file's place in the order.

    Args:
        store: Where the order is kept, as `monitoring/<model>/files.json`.
        model: The registered model's name.
        snapshots: The oldest first.

    Returns:
        SHA-256 → place. A file that was written again is another file.

    Raises:
        PerennialError: the record is damaged, or other runs write without end.
    """
    key = f"monitoring/{model}/files.json"
    for _ in range(MAX_ATTEMPTS):
        previous = store.read(key)
        known = _parsed(previous, f"{store.uri}/{key}")
        order = dict.fromkeys(known.sha256)
        for snapshot in snapshots:
            files = dict(zip(snapshot.paths, snapshot.files, strict=True))
            order |= dict.fromkeys(files[path].sha256 for path in sorted(files, key=by_name))
        found = {digest: place for place, digest in enumerate(order)}
        if len(found) == len(known.sha256):
            return found
        content = ArrivedFiles(sha256=tuple(found)).to_json().encode()
        try:
            store.replace(key, content, previous=previous)
        except ConflictError:
            continue
        return found
    raise PerennialError(
        f"the order in which the files of {model} arrived could not be recorded",
        evidence=f"{MAX_ATTEMPTS} attempts met another writer",
        action="look for monitoring runs that are started in a loop, then run this one again",
    )


def _parsed(content: bytes | None, uri: str) -> ArrivedFiles:
    if content is None:
        return ArrivedFiles()
    try:
        return ArrivedFiles.from_json(content)
    except ValueError as error:
        raise PerennialError(
            "the order in which files arrived cannot be read: it is damaged or of another version",
            evidence=f"{uri}: {error}",
            action="delete it: the next monitoring orders the files of each snapshot by name",
        ) from error
