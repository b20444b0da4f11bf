"""Made-up confirmations: candidates whose true values on all possible rows are known."""

import numpy as np

from perennial.engine.evaluation.resampling import Blocks
from perennial.studies.analysis.confirmation import HeldOutRows, Measured

RESAMPLES = 400


def made_rows(blocks: int, resamples: int = RESAMPLES) -> HeldOutRows:
    """Return test rows of independent groups."""
    found = Blocks(np.arange(blocks), blocks, "group")
    return HeldOutRows(found, found.draws(resamples))


def made_candidates(
    true: list[float],
    rows: HeldOutRows,
    generator: np.random.Generator,
    *,
    seeds: int = 3,
    between_seeds: float = 1.0,
    between_blocks: float = 1.0,
    within: float = 1.0,
) -> list[Measured]:
    """Return candidates of which the first, trial 0, is the baseline.

    Args:
        true: The metric of each on all possible rows, its mean over all possible seeds.
        rows: The test rows.
        generator: Draws everything.
        seeds: Confirmations of each.
        between_seeds: Standard deviation of a training's true value between seeds.
        between_blocks: Standard deviation, between blocks, of what all seeds of a candidate share.
        within: Standard deviation of a training's own errors from block to block.
    """
    count = rows.blocks.count
    shared = generator.standard_normal(count)  # days are harder or easier for all
    found = []
    for number, value in enumerate(true):
        own = shared + between_blocks * generator.standard_normal(count)
        trained = value + between_seeds * generator.standard_normal(seeds)
        errors = within * generator.standard_normal((seeds, count))
        by_block = trained[:, None] + own + errors
        means = by_block.mean(axis=1)
        draws = by_block @ rows.draws.T / rows.draws.sum(axis=1)
        found.append(Measured(number, means, draws, by_block - means[:, None]))
    return found
