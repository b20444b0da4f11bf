"""Partition reader: parts of a partition, read from the store at the version that was pinned."""

import io
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from typing_extensions import Buffer, override

from perennial.clients.object_store import LocalObjectStore, ObjectStore, StoredObject, open_store
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.dataset import Dataset, locate


def open_partition(
    file: DataFile, snapshot: Snapshot, versions: Mapping[str, str], cache: Path | None = None
) -> pa.NativeFile:
    """Open a partition for `pyarrow.parquet.ParquetFile`, which reads the footer and row groups.

    A remote file whose version is known is read by ranges, each on condition that the object still
    has this version. Its bytes are then protected on the way by the connection alone. Any other
    file is fetched whole and verified.

    Args:
        file: One of the snapshot's files.
        snapshot: The snapshot.
        versions: Address → version, from `pinned_versions`.
        cache: Folder of fetched files.

    Raises:
        BadDataError: the file is gone or has changed; also from reads of what is returned.
    """
    root, key = locate(snapshot, file)
    store, version = open_store(root), versions.get(file.uri, "")
    if version and not isinstance(store, LocalObjectStore):
        item = StoredObject(key, file.size_bytes, version)
        return pa.PythonFile(_RangedFile(store, item), mode="r")
    return pa.OSFile(str(Dataset(snapshot, cache).fetch(file)))


class _RangedFile(io.RawIOBase):
    """One version of an object as a seekable file."""

    def __init__(self, store: ObjectStore, item: StoredObject) -> None:
        self._store, self._item, self._at = store, item, 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._item.size_bytes}[whence]
        self._at = start + offset
        return self._at

    @override
    def tell(self) -> int:
        return self._at

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._item.size_bytes - self._at, 0)
        count = left if size is None or size < 0 else min(size, left)
        if not count:
            return b""
        content = self._store.read_range(self._item, self._at, self._at + count)
        self._at += len(content)
        return content

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer)
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)
