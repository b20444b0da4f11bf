"""Facts state: everything that is measured of some rows, as tables that merge.

Merging is associative and commutative: rows give the same state in any order, grouping or
partitioning. Sums are of whole numbers, and samples are chosen by hashes.
"""

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl

from perennial.validate_data.columns import merge_columns
from perennial.validate_data.distributions import merge_numbers, merge_texts
from perennial.validate_data.duplicates import merge_keys
from perennial.validate_data.labels import merge_few_labels, merge_labels
from perennial.validate_data.samples import smallest_keys

_HEADER = "state.json"
# As in every ZIP archive that must not depend on the time at which it was written.
_WRITTEN_AT = (1980, 1, 1, 0, 0, 0)


def _add_up(*keys: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return what adds up the other columns of the rows with equal keys."""
    return lambda table: table.group_by(keys).agg(pl.all().sum()).sort(keys)


# By name, or by its beginning: keys have a table for every kind, such as `keys:row`.
_MERGE: Mapping[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "columns": merge_columns,
    "days": _add_up("day"),
    "blocks": _add_up("__block__"),
    "numbers": merge_numbers,
    "texts": merge_texts,
    "keys": merge_keys,
    "labels": merge_labels,
    "label_sums": _add_up("block", "exponent"),
    "few_labels": merge_few_labels,
    "sample": smallest_keys,
}
_BLOCK_COLUMNS = {
    "blocks": "__block__",  # beside features, which may have any other name
    **dict.fromkeys(("numbers", "texts", "label_sums", "few_labels"), "block"),
}
# The large ones; a block of theirs depends on the rows of no other, and they are sorted by it.
_BY_BLOCK = ("numbers", "texts")


@dataclass(frozen=True)
class FactsState:
    """Tables by name; each module of this folder describes its own."""

    tables: Mapping[str, pl.DataFrame]

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame]) -> "FactsState":
        """Return the state of measured tables; what would take much memory is cut to size."""
        return cls(
            {
                name: _merged(name, table) if name in (*_BY_BLOCK, "sample") else table
                for name, table in tables.items()
            }
        )

    def __getitem__(self, name: str) -> pl.DataFrame:
        return self.tables[name]

    def with_block(self, path: str) -> "FactsState":
        """Return a copy whose only block, of a partition without a time column, has a name."""
        named = {
            name: self[name].with_columns(pl.lit(path).alias(column))
            for name, column in _BLOCK_COLUMNS.items()
        }
        return FactsState({**self.tables, **named})

    def without_blocks(self) -> "FactsState":
        """Return a copy whose block is not described; its texts tell which are frequent."""
        nowhere = self.with_block("")
        empty = {name: nowhere[name].clear() for name in _BLOCK_COLUMNS if name != "texts"}
        return FactsState({**nowhere.tables, **empty})

    def to_bytes(self, title: Mapping[str, str]) -> bytes:
        """Return a ZIP archive of Arrow files, equal for equal states and titles."""
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            header = json.dumps({**title, "tables": [*self.tables]})
            archive.writestr(zipfile.ZipInfo(_HEADER, _WRITTEN_AT), header)
            for name, table in self.tables.items():
                content = io.BytesIO()
                table.rechunk().write_ipc(content, compression="zstd")
                archive.writestr(zipfile.ZipInfo(name, _WRITTEN_AT), content.getvalue())
        return stream.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes, title: Mapping[str, str]) -> "FactsState":
        """Read an archive.

        Raises:
            ValueError: it is damaged, or has another title.
        """
        with _opened(content) as (archive, found):
            if {name: found.get(name) for name in title} != title:
                raise ValueError(f"it is of {found}")
            names = [name for name in archive.namelist() if name != _HEADER]
            if found["tables"] != names:
                raise ValueError("it lacks a table")
            return cls({name: pl.read_ipc(archive.read(name)) for name in names})


def title_of(content: bytes) -> dict[str, str]:
    """Return the title of an archive.

    Raises:
        ValueError: it is damaged.
    """
    with _opened(content) as (_, found):
        return {name: str(value) for name, value in found.items() if name != "tables"}


@contextmanager
def _opened(content: bytes) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
    """Yield an archive, which checks every member's CRC, and its header."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            yield archive, json.loads(archive.read(_HEADER))
    except (
        zipfile.BadZipFile,
        KeyError,
        EOFError,
        OSError,
        pl.exceptions.PolarsError,
    ) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def merge_in_steps(
    states: Iterable[FactsState],
    merge_all: Callable[[Sequence[FactsState]], FactsState],
    at_once: int = 4,
) -> FactsState:
    """Merge states as they come, a few at once: memory does not grow with their number."""
    waiting: list[FactsState] = []
    for state in states:
        waiting.append(state)
        if len(waiting) > at_once:
            waiting = [merge_all(waiting)]
    return waiting[0] if len(waiting) == 1 else merge_all(waiting)


def merge(states: Sequence[FactsState]) -> FactsState:
    """Return the state of all rows of several states."""
    return FactsState(
        {
            name: _merge_blocks(name, [each[name] for each in states])
            if name in _BY_BLOCK
            else _merged(name, pl.concat([each[name] for each in states]))
            for name in states[0].tables
        }
    )


def _merged(name: str, table: pl.DataFrame) -> pl.DataFrame:
    return _MERGE[name.partition(":")[0]](table)


def _merge_blocks(name: str, tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Merge the blocks that several tables have; the others, of a long history most, are copied."""
    blocks = pl.concat([table["block"].unique() for table in tables])
    shared = pl.col("block").is_in(blocks.filter(blocks.is_duplicated()).unique().implode())
    together = _merged(name, pl.concat([table.filter(shared) for table in tables]))
    alone = [table.filter(~shared) for table in tables]
    return pl.concat([*alone, together]).sort("block", maintain_order=True)
