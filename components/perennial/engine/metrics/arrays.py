"""Arrays of rows: read in parts, and kept in files where they would fill the memory."""

import math
from collections.abc import Iterable, Iterator
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

# 2 MiB: what a part of the rows takes beside the rows themselves, a few times over.
NUMBERS_AT_ONCE = 2**18
IN_MEMORY_BYTES = 2**23
"""A larger array lies in a file: its pages are the kernel's cache, which it drops under pressure,
and count as no memory that this process needs."""


class GrowingArray:
    """An array that rows are appended to; memory holds `IN_MEMORY_BYTES` of it at most."""

    def __init__(self) -> None:
        self._parts: list[NDArray[Any]] = []
        self._file: IO[bytes] | None = None
        self._rows = 0

    def append(self, part: NDArray[Any]) -> None:
        """Add rows, of the type and shape of those before.

        Raises:
            OSError: the disk of temporary files is full.
        """
        self._rows += len(part)
        if self._file is None:
            self._parts.append(part)
            if sum(each.nbytes for each in self._parts) <= IN_MEMORY_BYTES:
                return
            self._file, held = TemporaryFile(), self._parts  # noqa: SIM115
            self._parts = held[:1]
            for each in held:
                each.tofile(self._file)
            return
        part.tofile(self._file)

    def array(self) -> NDArray[Any]:
        """Return all rows; a file's are read only, and it is gone with the last view of it."""
        if self._file is None:
            return np.concatenate(self._parts)
        first = self._parts[0]
        with self._file as file:
            file.flush()
            # A plain view: reading through the memmap subclass costs several times as much.
            shape = self._rows, *first.shape[1:]
            return np.asarray(np.memmap(file, first.dtype, "r", shape=shape))


def array_of(parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Return the concatenated parts, of which there is at least one."""
    whole = GrowingArray()
    for part in parts:
        whole.append(part)
    return whole.array()


def parts_of(values: NDArray[Any]) -> Iterator[slice]:
    """Return all rows, so many at a time that a part holds `NUMBERS_AT_ONCE`; one part at least."""
    width = math.prod(values.shape[1:])
    return slices_of(len(values), max(1, NUMBERS_AT_ONCE // max(width, 1)))


def slices_of(rows: int, at_once: int) -> Iterator[slice]:
    """Return slices over so many rows; one at least."""
    return (slice(start, start + at_once) for start in range(0, max(rows, 1), at_once))


def all_finite(values: NDArray[np.float64]) -> bool:
    """Whether every one is a finite number."""
    return all(bool(np.isfinite(values[part]).all()) for part in parts_of(values))


def evenly_spaced(rows: int, at_most: int) -> slice:
    """Return at most so many of the rows, all if there are no more."""
    return slice(None, None, max(-(-rows // at_most), 1))


def sums_by_group(
    parts: Iterable[tuple[NDArray[np.int64], NDArray[np.float64]]], count: int
) -> NDArray[np.float64]:
    """Add up the values of each group, shape [count]: as one `np.bincount` of all, bit for bit."""
    groups, sums = np.arange(count), np.zeros(count)
    for index, values in parts:
        # The sums come first, so that values are added to them one by one, in order.
        weights = np.concatenate([sums, values])
        added = np.bincount(np.concatenate([groups, index]), weights, count)
        sums = added.astype(np.float64, copy=False)
    return sums
