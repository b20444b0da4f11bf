"""Statistical power: the improvement that a test split detects, and the size that it needs."""

import math
from bisect import bisect_left

from scipy.special import stdtrit

from perennial.contracts.gate import Comparison, Reach
from perennial.engine.evaluation.resampling import Blocks
from perennial.gate.config import GateSection

# The usual power of a planned comparison (Cohen, Statistical Power Analysis, 1988).
FOUND_IN = 0.8
MANY = 1000  # times as many blocks: no test split grows that large


def reach_of(
    gate: GateSection, comparison: Comparison, measured: Blocks, planned: Blocks | None = None
) -> Reach | None:
    """Return the power of a comparison; None if nothing was compared.

    An error falls with the root of the number of blocks. `planned` are the blocks of another test
    split to predict the power of.
    """
    error, degrees = comparison.standard_error, comparison.degrees
    confidence = gate.confidence
    # A planned split has new days, which start at the full level.
    if planned is None and comparison.confidence is not None:
        confidence = comparison.confidence
    if error is None or degrees is None or not math.isfinite(error):
        return None

    def detectable(count: int) -> float:
        # Degrees of freedom grow with the number of blocks.
        left = max((degrees + 1.0) * count / measured.count - 1.0, 1.0)
        # The sum of both quantiles approximates the quantile of the non-central t distribution.
        quantiles = float(stdtrit(left, confidence) + stdtrit(left, FOUND_IN))
        return gate.least_improvement + quantiles * error * math.sqrt(measured.count / count)

    count, needed = (planned or measured).count, None
    if gate.worth_finding is not None:
        wanted = gate.worth_finding
        fewest = gate.min_test_blocks
        if measured.unit == "day":  # fewer are rarely judged, whatever they could detect
            fewest = max(fewest, math.ceil(gate.min_effective_days))
        counts = range(fewest, MANY * measured.count)
        # Bisection, because the detectable improvement only falls with the number of blocks.
        at = bisect_left(counts, True, key=lambda number: detectable(number) <= wanted)
        needed = counts[at] if at < len(counts) else None
    return Reach(
        detectable=detectable(count),
        worth_finding=gate.worth_finding,
        blocks=count,
        blocks_needed=needed,
    )


def reach_line(reach: Reach, metric: str, unit: str) -> str:
    """Describe the power of a test split, and the size needed for `worth_finding`."""
    can = (
        f"{reach.blocks:,} test {unit}s detect an improvement in {metric} of "
        f"{reach.detectable:.2g} with {FOUND_IN:.0%} power"
    )
    if reach.sufficient:
        return can
    if reach.blocks_needed is None:
        return f"{can}; no number of {unit}s detects gate.worth_finding = {reach.worth_finding:g}"
    return (
        f"{can}; gate.worth_finding = {reach.worth_finding:g} needs {reach.blocks_needed:,}: "
        f"test on more {unit}s, or set a larger gate.worth_finding"
    )
