"""Block cache: encoded blocks as files of tensors, on a machine's disk and in the store.

Every process of a machine maps them. The format is safetensors, with the digest of the tensors: a
file that is truncated or altered is never taken for what was written. Shards are blocks that were
encoded ahead into the store, so that trainings only read tensors. They are content-addressed: by
partitions, row groups, columns, split rule, fitted state, task and code. A training whose data has
grown, under the same fitted state, finds those of the partitions that it had before.
"""

import hashlib
import logging
import os
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from perennial.clients.object_store import open_store
from perennial.contracts.errors import BadDataError
from perennial.engine.task import Batch

_CONTENT = "sha256"
logger = logging.getLogger(__name__)


class DamagedBlockError(Exception):
    """A file of tensors is not what was written."""


class BlockCache:
    """A folder of encoded blocks, bounded in bytes; the least recently used are deleted first.

    What is mapped at the moment comes on top of the limit.

    All processes of a machine share it: files appear whole, and one that is mapped stays readable
    after it was deleted.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._limit = limit_bytes

    def has(self, key: str) -> bool:
        """Whether a block is there."""
        return self.path(key).exists()

    def load(self, key: str, *, is_new: bool) -> Batch | None:
        """Map a block; None if it is not there.

        One that lay there before is verified, and deleted if it is damaged.
        """
        path = self.path(key)
        try:
            tensors: Batch = load_file(path) if is_new else load_block(path)
            # `_evict` goes by the time of modification, which reading does not change.
            os.utime(path)
        except FileNotFoundError:
            return None
        except (DamagedBlockError, SafetensorError, OSError) as error:
            logger.warning("block=%s is damaged and will be encoded again: %s", path.name, error)
            path.unlink(missing_ok=True)
            return None
        return tensors

    def store(self, key: str, tensors: Batch) -> None:
        """Write a block, then delete others until all are within the limit."""
        self.add(key, lambda partial: save_block(partial, tensors))

    def add(self, key: str, write: Callable[[Path], None]) -> None:
        """Let `write` make the file of a block, which appears whole or not at all."""
        target = self.path(key)
        partial = self.folder / f".{key}.{os.getpid()}.{threading.get_ident()}"
        try:
            write(partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        self._evict(target.name)

    def _evict(self, newest: str) -> None:
        found = []
        for each in os.scandir(self.folder):
            try:
                found.append((each.stat().st_mtime_ns, each.stat().st_size, each.name))
            except FileNotFoundError:  # another process deletes, too
                continue
        total = sum(size for _, size, _ in found)
        for _, size, name in sorted(found):
            if total <= self._limit:
                break
            # Files that other processes still write count, but only their writers may delete them.
            if name != newest and not name.startswith("."):
                (self.folder / name).unlink(missing_ok=True)
                total -= size

    def path(self, key: str) -> Path:
        """Return the file of a block, whether it is there or not."""
        return self.folder / f"{key}.safetensors"


def save_block(path: Path, tensors: Batch) -> None:
    """Write tensors with the digest of their bytes."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, path, metadata={_CONTENT: digest_of(whole)})


def load_block(path: Path) -> Batch:
    """Map the tensors of a file.

    Raises:
        DamagedBlockError: the file is truncated, or holds other bytes than were written.
        OSError: it is missing or cannot be read.
    """
    try:
        with safe_open(path, "pt") as stream:
            expected = (stream.metadata() or {}).get(_CONTENT)
        tensors: Batch = load_file(path)
    except SafetensorError as error:
        raise DamagedBlockError(str(error)) from error
    if digest_of(tensors) != expected:
        raise DamagedBlockError("its tensors have another SHA-256 than was written")
    return tensors


def digest_of(tensors: Batch) -> str:
    """Return the SHA-256 of the tensors' names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


class ShardStore:
    """The shards of one identity."""

    def __init__(self, uri: str, identity: str) -> None:
        self._store = open_store(uri)
        self._prefix = shards_prefix(identity)

    @cached_property
    def keys(self) -> frozenset[str]:
        """Names of the blocks that were there when they were first asked for."""
        listed = self._store.list(self._prefix)
        return frozenset(Path(each.key).stem for each in listed)

    def fetch(self, key: str, cache: BlockCache) -> bool:
        """Copy a block into the cache; False where there is none, or it is damaged."""
        if key not in self.keys:
            return False

        def download(partial: Path) -> None:
            self._store.download(self._name(key), partial)
            # Verified before it is in the cache: the rows of a damaged block are encoded here
            # instead.
            load_block(partial)

        try:
            cache.add(key, download)
        except (DamagedBlockError, BadDataError) as error:
            logger.warning("shard=%s is damaged or gone, its rows are encoded here: %s", key, error)
            return False
        return True

    def add(self, key: str, file: Path) -> None:
        """Upload a block."""
        self._store.upload(self._name(key), file)

    def _name(self, key: str) -> str:
        return f"{self._prefix}{key}.safetensors"


def shards_prefix(identity: str) -> str:
    """Return the prefix of the shards of one identity."""
    return f"encoded/{identity}/"
