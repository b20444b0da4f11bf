"""The sample of rows weighs blocks by their rows, whatever windows of the splits leave of them."""

import numpy as np
import polars as pl
import pytest

from perennial.validate_data.samples import STRATUM_ROWS, smallest_keys, uniform_sample


def block(number: int, rows: int, used: float) -> pl.DataFrame:
    """A block of rows, of which a share is in a split."""
    random = np.random.default_rng(number)
    split = pl.Series(np.where(random.random(rows) < used, "test", ""), dtype=pl.String)
    split = split.replace("", None)
    return pl.DataFrame({"__key__": random.random(rows), "split": split}).with_columns(
        pl.lit(number, pl.Int32).alias("__stratum__")
    )


def sampled(*blocks: pl.DataFrame) -> dict[int, int]:
    rows = uniform_sample(smallest_keys(pl.concat(blocks)), "split")
    return dict(rows.group_by("__stratum__").len().iter_rows())


@pytest.mark.parametrize("used", [1.0, 0.5, 0.05])
def test_a_large_block_counts_as_many_times_as_it_has_rows(used):
    """Rows outside of a window took it below the size at which a block is known to be cut."""
    found = sampled(block(0, 40_000, used), block(1, 5_000, 1.0))
    assert found[0] / found[1] == pytest.approx(8 * used, rel=0.25)


def test_a_block_without_rows_in_a_window_limits_no_other():
    kept = block(1, 5_000, 1.0)
    assert sampled(block(0, 400_000, 0.0), kept) == {1: STRATUM_ROWS}
