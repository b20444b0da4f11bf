"""Performance: the challenger's loss block by block, the yardstick for later decay."""

from collections.abc import Sequence
from datetime import datetime, time

import polars as pl

from components.clients.dataset import block_start
from components.contracts.data import DataSection
from components.contracts.gate import BlockPerformance
from components.engine.evaluation.scoring import Scored, concatenated


def performance_by_block(
    scored: Sequence[Scored], data: DataSection
) -> tuple[BlockPerformance, ...]:
    """Mean loss in each block of time, by the examples' weights.

    Args:
        scored: The model on held-out splits, with the time column kept.
        data: Names the time column and the blocks' length; without a time there are no blocks.
    """
    if not data.time:
        return ()
    starts = pl.concat([part.rows.select(start=block_start(data)) for part in scored])
    whole = concatenated(scored)
    sums = pl.DataFrame({"loss": whole.weights * whole.losses, "weight": whole.weights})
    by_block = pl.concat([starts, sums], how="horizontal").group_by("start")
    mean = pl.col("loss").sum() / pl.col("weight").sum()
    table = by_block.agg(pl.len().alias("rows"), mean).sort("start")
    return tuple(
        BlockPerformance(start=datetime.combine(start, time()), rows=rows, loss=loss)
        for start, rows, loss in table.select("start", "rows", "loss").iter_rows()
    )
