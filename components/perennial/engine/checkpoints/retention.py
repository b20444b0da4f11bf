"""Retention: which checkpoints are worth their disk?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from perennial.contracts.training import Direction, KeptAs


@dataclass(frozen=True)
class Retention:
    """The best by a metric, the last, and those of every so many steps.

    Attributes:
        keep_best: How many of the best.
        keep_every_steps: Multiples of it are kept too; None for none.
        metric: By which they are compared; the better of the weights' figure and of their moving
            average's (`averaged_…`), where there is one.
        direction: Which way it is better.
    """

    keep_best: int
    keep_every_steps: int | None
    metric: str
    direction: Direction

    def choose(self, measured: Mapping[int, Mapping[str, float]]) -> dict[int, KeptAs]:
        """Step → why it is kept; earlier steps win ties.

        Args:
            measured: Step → metrics of the committed checkpoints. One without the metric, or with
                one that is not a finite number, is not among the best.
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
