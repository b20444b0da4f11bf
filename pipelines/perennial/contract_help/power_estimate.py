"""Power estimate: what the current test split can find, from recorded comparisons."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from perennial.contract import Contract
from perennial.contracts.data import Split
from perennial.contracts.gate import Verdict
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.resampling import Blocks, block_columns, blocks_of
from perennial.gate.config import GateSection
from perennial.gate.decision import RANKING
from perennial.gate.power import reach_line, reach_of
from perennial.registry_commands.listing import find_judged_runs
from perennial.runs import Home

CLASSES = 2


def power_estimate_lines(
    home: Home, contract: Contract, rows: pl.DataFrame, blocks: Blocks
) -> Iterator[str]:
    """Yield the number of independent test blocks, and the improvement that they can find.

    How much two models differ from day to day shows only when two are compared, so without an
    earlier comparison in the home nothing is estimated. Rows and blocks are those that
    `count_test_blocks` returns.
    """
    gate = contract.gate
    yield f"the gate judges on {blocks.count:,} independent blocks ({blocks.unit}s)"
    earlier = _latest_comparison(home, contract)
    metrics = {gate.metric, *gate.max_regression}
    if earlier is not None:
        metrics.add(earlier.comparisons[0].metric)
    if metrics.intersection(RANKING):
        yield from _rarer_class(rows[contract.data.label], blocks, gate)
    if earlier is None:
        if blocks.unit == "day" and blocks.count < gate.min_effective_days:
            yield (
                f"WARNING: {blocks.count} test days can rarely count as gate.min_effective_days = "
                f"{gate.min_effective_days:g} independent ones, so that few challengers of a "
                "champion will be judged: test on more days, or lower it if you know that days are "
                "independent"
            )
        if gate.worth_finding is not None:
            yield (
                f"whether they find gate.worth_finding = {gate.worth_finding:g} shows after the "
                "first comparison with a champion"
            )
        return
    decisive = earlier.comparisons[0]
    if blocks.unit == "day" and decisive.effective_blocks is not None:
        worth = decisive.effective_blocks * blocks.count / earlier.test_blocks
        if worth < gate.min_effective_days:
            yield (
                f"WARNING: going by the last comparison, these days are worth {worth:.1f} "
                f"independent ones, and the gate wants {gate.min_effective_days:g}: what one model "
                f"is better by correlates at {decisive.correlation or 0.0:.2f} from one day to the "
                "next; judge on more days"
            )
    # Of the earlier split only the number of blocks is known, which is all that is read here.
    measured = Blocks(np.empty(0, dtype=np.int64), earlier.test_blocks, blocks.unit)
    reach = reach_of(gate, decisive, measured, blocks)
    if reach is not None:
        line = reach_line(reach, decisive.metric, blocks.unit)
        yield f"{'' if reach.sufficient else 'WARNING: '}{line}"


def count_test_blocks(snapshot: Snapshot) -> tuple[pl.DataFrame, Blocks]:
    """Return the test rows' columns that make blocks, and the independent blocks."""
    dataset = Dataset(snapshot)
    rows = dataset.collect(dataset.scan(Split.TEST).select(block_columns(snapshot.data)))
    return rows, blocks_of(rows, snapshot.data, snapshot.split)


def _rarer_class(labels: pl.Series, blocks: Blocks, gate: GateSection) -> Iterator[str]:
    """Whether a ranking metric of two classes has enough rows of the rarer one."""
    counts = labels.drop_nulls().alias("value").value_counts(sort=True)
    if counts.height != CLASSES:
        return
    rare = labels.eq_missing(counts["value"][-1]).to_numpy()
    rows, held = int(rare.sum()), blocks.at(rare).count
    if rows < gate.min_rare_rows or held < gate.min_rare_blocks:
        yield (
            f"WARNING: {rows:,} test rows are of the rarer class, in {held:,} {blocks.unit}s; with "
            f"a ranking metric the gate wants {gate.min_rare_rows:,} in {gate.min_rare_blocks:,} "
            "and will keep any champion: judge on more days, or by log_loss"
        )


def _latest_comparison(home: Home, contract: Contract) -> Verdict | None:
    """Return the newest verdict of this model that compared two models on the contract's metric."""
    metric = contract.gate.metric
    for _, verdict in reversed(list(find_judged_runs(home, contract.model.name))):
        if verdict is None or not verdict.comparisons:
            continue
        decisive = verdict.comparisons[0]
        if decisive.standard_error is not None and metric in {"", decisive.metric}:
            return verdict
    return None
