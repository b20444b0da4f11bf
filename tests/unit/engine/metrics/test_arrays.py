"""Arrays of any number of rows: the same in files and parts as in memory at once."""

from pathlib import Path

import numpy as np
import pytest

from perennial.engine.metrics import arrays
from perennial.engine.metrics.arrays import (
    array_of,
    evenly_spaced,
    parts_of,
    sums_by_group,
)

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, bool])
@pytest.mark.parametrize("width", [(), (3,)])
def test_an_array_is_the_same_in_memory_and_in_a_file(monkeypatch, dtype, width):
    parts = [RANDOM.integers(0, 2, (rows, *width)).astype(dtype) for rows in (5, 0, 7, 1)]
    held = array_of(parts)
    monkeypatch.setattr(arrays, "IN_MEMORY_BYTES", 10)
    filed = array_of(iter(parts))
    assert filed.base is not None, "a view of a file"
    assert not filed.flags.writeable
    np.testing.assert_array_equal(filed, held, strict=True)
    np.testing.assert_array_equal(held, np.concatenate(parts), strict=True)


def num_open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_file_has_no_name_and_goes_with_its_array(monkeypatch, tmp_path):
    monkeypatch.setattr(arrays, "IN_MEMORY_BYTES", 0)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    opened = num_open_files()
    made = array_of([np.ones(1000)] * 3)
    assert made.sum() == 3000
    assert list(tmp_path.iterdir()) == []
    assert num_open_files() <= opened + 1
    del made
    assert num_open_files() == opened


@pytest.mark.parametrize("shape", [(0,), (1,), (1000,), (1000, 7), (10, 1000)])
def test_parts_cover_every_row_once_and_are_small(monkeypatch, shape):
    monkeypatch.setattr(arrays, "NUMBERS_AT_ONCE", 100)
    values = np.zeros(shape)
    parts = list(parts_of(values))
    assert sum(len(values[part]) for part in parts) == len(values)
    assert all(values[part].size <= max(100, int(np.prod(shape[1:]))) for part in parts)


def test_sums_in_parts_are_those_of_all_rows_at_once_bit_for_bit():
    index, values = RANDOM.integers(0, 7, 10_000), RANDOM.normal(size=10_000) * 1e6
    parts = [slice(0, 1), slice(1, 1), slice(1, 7777), slice(7777, None)]
    found = sums_by_group(((index[part], values[part]) for part in parts), 9)
    whole = np.bincount(index, weights=values, minlength=9)
    assert found.tobytes() == whole.tobytes()


def test_evenly_spaced_rows_are_all_or_at_most_as_many():
    for rows in (0, 1, 99, 100, 101, 5000):
        kept = np.arange(rows)[evenly_spaced(rows, 100)]
        assert len(kept) == (rows if rows <= 100 else pytest.approx(75, abs=25))
