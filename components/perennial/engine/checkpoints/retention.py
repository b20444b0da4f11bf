"""Retention: which checkpoints are kept."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from perennial.contracts.training import Direction, KeptAs


@dataclass(frozen=True)
class Retention:
    """Retention policy: the best by a metric, the last, and those at regular steps.

    Attributes:
        keep_every_steps: Multiples of it are kept too; None for none.
        metric: Metric by which they are compared; the better value of the weights and of their
            moving average's (`averaged_…`), where there is one.
    """

    keep_best: int
    keep_every_steps: int | None
    metric: str
    direction: Direction

    def choose(self, measured: Mapping[int, Mapping[str, float]]) -> dict[int, KeptAs]:
        """Return step → reason why it is kept; earlier steps win ties.

        A checkpoint whose metric is missing or not finite is not among the best.
        """
        sign = 1.0 if self.direction == "minimize" else -1.0
        names = (self.metric, f"averaged_{self.metric}")
        figures = {
            step: [sign * metrics[name] for name in names if name in metrics]
            for step, metrics in measured.items()
        }
        finite = {step: list(filter(math.isfinite, each)) for step, each in figures.items()}
        scored = sorted((min(each), step) for step, each in finite.items() if each)
        best = {step for _, step in scored[: self.keep_best]}
        last = max(measured, default=None)
        every = self.keep_every_steps
        kept: dict[int, KeptAs] = {}
        for step in sorted(measured):
            reasons: KeptAs = ("best",) if step in best else ()
            reasons += ("interval",) if every and step % every == 0 else ()
            reasons += ("last",) if step == last else ()
            if reasons:
                kept[step] = reasons
        return kept
