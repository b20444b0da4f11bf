"""Shards: blocks that were encoded ahead into the store, so that trainings only read tensors.

They are content-addressed: by partitions, row groups, fitted state, task and code. A training whose
data has grown, under the same fitted state, finds those of the partitions that it had before.
"""

import logging
from functools import cached_property
from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.errors import BadDataError
from perennial.engine.data.block_cache import BlockCache, DamagedBlockError, load_block

logger = logging.getLogger(__name__)


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
