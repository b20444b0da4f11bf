"""Row blocks: runs of row groups that are read, encoded and kept together, as files of tensors."""

import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from pydantic import JsonValue

from perennial.contracts.data import ModelSection, Split
from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.contracts.section import digest_of
from perennial.contracts.snapshot import Snapshot
from perennial.data.row_groups import RowGroupReader, SelectedGroup
from perennial.engine.data.block_cache import BlockCache, ShardStore
from perennial.engine.data.encoded import ENCODE_ROWS, checked, joined
from perennial.engine.task import Batch, Task, load_task

BLOCK_ROWS = 16_384
"""Row groups are joined up to this size: below, a batch would gather a few rows each from hundreds
of files."""


@dataclass(frozen=True)
class RowBlock:
    """Neighbouring row groups, read and encoded together."""

    groups: tuple[SelectedGroup, ...]
    rows: int


def join_groups(groups: Sequence[SelectedGroup]) -> list[RowBlock]:
    """Return the blocks of a split, without those in which it has no row.

    Cut by the rows of all splits, so that a window of days that moves on changes no block but those
    at its edge.
    """
    blocks, run = list[RowBlock](), list[SelectedGroup]()
    for number, each in enumerate(groups):
        run.append(each)
        is_last = number + 1 == len(groups)
        if is_last or sum(found.group.rows for found in run) >= BLOCK_ROWS:
            rows = sum(found.selected for found in run)
            if rows:
                blocks.append(RowBlock(tuple(found for found in run if found.selected), rows))
            run = []
    return blocks


@dataclass(frozen=True)
class EncoderRecipe:
    """What a worker process builds its encoder from.

    Attributes:
        cache: Folder of the encoded blocks, and its limit in bytes.
        identity: Digest of task, code, columns, split rule and fitted state.
        shards: Address of the store with blocks that were encoded ahead; empty for none.
        sources: Digest of the task's modules, where another machine may encode; empty: any.
    """

    snapshot: Snapshot
    model: ModelSection
    state: Mapping[str, JsonValue]
    split: Split
    cache: tuple[Path, int]
    identity: str
    shards: str = ""
    sources: str = ""


class BlockEncoder:
    """Reads and encodes blocks into the cache, with a fitted task if the process has one."""

    def __init__(self, recipe: EncoderRecipe, task: Task | None = None) -> None:
        if task is None:
            columns = recipe.snapshot.task_columns
            task = load_task(recipe.model.task, recipe.model.options, columns)
            task.load_state(recipe.state)
        self.task = task
        self.cache = BlockCache(*recipe.cache)
        self._recipe = recipe
        self._reader = RowGroupReader(recipe.snapshot)
        self._shards = ShardStore(recipe.shards, recipe.identity) if recipe.shards else None
        self._readers = ThreadPoolExecutor(1, "row-reader")
        self._coming: dict[str, Future[list[pl.DataFrame]]] = {}

    def key(self, block: RowBlock) -> str:
        """Return the name of an encoded block: a digest of all that determines its content."""
        files = self._recipe.snapshot.files
        parts: list[JsonValue] = [
            # Windows leave out the days before one of them: equally many rows of a group are the
            # same.
            [files[each.file].sha256, each.group.sha256, each.index, each.selected]
            for each in block.groups
        ]
        return digest_of([self._recipe.identity, self._recipe.split.value, parts])

    def __call__(self, block: RowBlock) -> float:
        """Put a block into the cache; return the seconds of encoding, 0 where it is there.

        Raises:
            BadDataError: a row group is damaged or was rewritten.
            BadTaskError: the task's `encode` raised, or breaks its contract.
        """
        key = self.key(block)
        coming = self._coming.pop(key, None)
        if self.cache.has(key) or (self._shards and self._shards.fetch(key, self.cache)):
            return 0.0
        start = time.monotonic()
        frames = coming.result() if coming else self._reader.read(block.groups, self._recipe.split)
        chunks = (chunk for rows in frames for chunk in rows.iter_slices(ENCODE_ROWS))
        batches = [self._encode(chunk, block) for chunk in chunks]
        self.cache.store(key, joined(batches, self.task, self.place_of(block)))
        return time.monotonic() - start

    def read_ahead(self, block: RowBlock) -> None:
        """Read and decode one block in a thread, while another is encoded.

        Tasks need not be safe to call from several threads, so encoding stays where it is.
        """
        key = self.key(block)
        if not self.cache.has(key) and not (self._shards and key in self._shards.keys):
            self._coming[key] = self._readers.submit(self._read, block)

    def place_of(self, block: RowBlock) -> str:
        """Return the partitions and row groups of a block, for messages."""
        first, last = block.groups[0], block.groups[-1]
        files = self._recipe.snapshot.files
        begin = f"row group {first.index} of {files[first.file].uri}"
        if (first.file, first.index) == (last.file, last.index):
            return begin
        return f"{begin} to row group {last.index} of {files[last.file].uri}"

    def _read(self, block: RowBlock) -> list[pl.DataFrame]:
        return list(self._reader.read(block.groups, self._recipe.split))

    def _encode(self, rows: pl.DataFrame, block: RowBlock) -> Batch:
        try:
            return checked(self.task.encode(rows), rows.height, self.task)
        except PerennialError:
            raise
        except Exception as error:  # the user's code may raise anything
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise BadTaskError(
                f"{type(self.task).__name__}.encode failed on {self.place_of(block)}",
                evidence=f"{type(error).__name__}: {error} "
                f"({Path(frame.filename).name}:{frame.lineno} in {frame.name})",
                action="encode must take every row of the split; the traceback is in the log of "
                "the rank",
            ) from error
