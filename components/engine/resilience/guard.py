"""Guard: is an update to be trusted, and what happens if not?"""

import math
from dataclasses import dataclass
from enum import Enum

from components.contracts.errors import TrainingFailedError
from components.engine.precision import LossScale
from components.engine.resilience.config import Anomalies


class Judgement(Enum):
    """What to do with the update whose gradient has just been computed."""

    APPLY = "apply"
    SKIP = "skip"
    """Leave it out; it still counts as a step."""
    REWIND = "rewind"
    """Go back to the last checkpoint and leave out the rows since."""


@dataclass
class Guard:
    """Judges every update whose loss and gradient norm are read; all ranks judge the same.

    Attributes:
        anomalies: The contract's policy.
        scale: Halved when float16 gradients overflow.
        skipped: Updates left out because they were not finite.
    """

    anomalies: Anomalies
    scale: LossScale
    skipped: int = 0

    @property
    def needs_every_step(self) -> bool:
        """Whether waiting for the logging step would be too late."""
        return self.scale.is_dynamic or self.anomalies.not_finite == "skip"

    def judge(self, step: int, loss: float, norm: float) -> Judgement:
        """What to do with update `step` (counted from 1).

        Raises:
            TrainingFailedError: it is not finite, and skipping is off or spent.
        """
        if math.isfinite(loss) and math.isfinite(norm):
            self.scale.succeeded()
            return Judgement.APPLY
        if math.isfinite(loss) and self.scale.overflowed():
            return Judgement.SKIP
        if self.anomalies.not_finite == "skip" and self.skipped < self.anomalies.max_skipped:
            self.skipped += 1
            return Judgement.SKIP
        raise self._not_finite(step, loss, norm)

    def _not_finite(self, step: int, loss: float, norm: float) -> TrainingFailedError:
        spent = f" after {self.skipped} updates were left out" if self.skipped else ""
        return TrainingFailedError(
            f"the training is not finite at or before step {step}{spent}: "
            f"loss {loss}, gradient norm {norm}",
            evidence="the rows of each rank's batch are listed in `not-finite-rank-*.json`",
            action="lower the learning rate or set training.clipping; if it is the first step, "
            "look for a division or logarithm of zero in the task's losses",
        )
