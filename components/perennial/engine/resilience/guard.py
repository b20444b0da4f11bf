"""Guard: decides whether to apply, skip, rewind or fail an update.

A loss is suspect when it lies above the median of a window by more than chance and by more than a
fluctuation that matters; a spike is a run of suspects. Median and median deviation, unlike mean and
variance, are not moved by the outliers that they are to find.
"""

import logging
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from perennial.contracts.errors import TrainingFailedError
from perennial.engine.checkpoints.folder import Progress, SpikeState
from perennial.engine.config.training import Anomalies, TrainingSection
from perennial.engine.precision import LossScale
from perennial.engine.world.distributed import Scalar

logger = logging.getLogger(__name__)


# llm-foundry's KillLossSpike waits for more than 4 outliers in a row; so do we.
SUSPECTS = 5
# Excess in robust standard deviations. Five independent normal losses in a row exceed 6 of them
# once in 1e45 windows; the margin is for losses that are neither.
DEVIATIONS = 6.0
# The median absolute deviation of a normal distribution, times this, is its standard deviation.
NORMAL = 1.4826
# Excess as a share of the median: full-batch trainings fluctuate by many deviations and few
# percent. llm-foundry asks for 1.0 above a mean that the spike itself has raised.
RISE = 0.5


class SpikeDetector:
    """Observes the mean loss of every global batch."""

    def __init__(self, window: int, state: SpikeState) -> None:
        self._recent = deque(state.recent, maxlen=window)
        self._sorted = sorted(state.recent)
        self._suspects = list(state.suspects)
        self._calm_needed = state.calm_needed

    def observe(self, loss: float) -> bool:
        """Take the next loss; True when it makes a run of suspects a spike."""
        if not self.is_suspect(loss):
            # Too few in a row for a spike: the suspects were fluctuations, which belong in the
            # window.
            self._remember(*self._suspects, loss)
            self._suspects.clear()
            self._calm_needed = max(0, self._calm_needed - 1)
            return False
        if self._calm_needed:  # still the spike that was reported, or the new level
            self._remember(loss)
            self._calm_needed = SUSPECTS
            return False
        self._suspects.append(loss)
        if len(self._suspects) < SUSPECTS:
            return False
        self._remember(*self._suspects)
        self._suspects.clear()
        self._calm_needed = SUSPECTS
        return True

    def is_suspect(self, loss: float) -> bool:
        """Whether a loss is too far above the window."""
        if len(self._sorted) < (self._recent.maxlen or 0):
            return False
        median = self.median
        excess = loss - median
        if excess <= RISE * abs(median):  # so nearly always, at the price of a look-up
            return False
        deviations = sorted(abs(each - median) for each in self._sorted)
        return excess > DEVIATIONS * NORMAL * _middle(deviations)

    @property
    def median(self) -> float:
        """Return the median of the window."""
        return _middle(self._sorted)

    def state(self) -> SpikeState:
        """Return the state, for a checkpoint."""
        return SpikeState(
            recent=tuple(self._recent),
            suspects=tuple(self._suspects),
            calm_needed=self._calm_needed,
        )

    def _remember(self, *losses: float) -> None:
        for loss in losses:
            if len(self._recent) == self._recent.maxlen:
                del self._sorted[bisect_left(self._sorted, self._recent[0])]
            self._recent.append(loss)
            insort(self._sorted, loss)


def _middle(ordered: list[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class Judgement(Enum):
    """The verdict on the update whose gradient has just been computed."""

    APPLY = "apply"
    RESCALE = "rescale"
    """Float16 overflowed: skip it and halve the scale. It still counts as a step."""
    SKIP = "skip"
    """Skip it and record its batch; it still counts as a step."""
    STOP = "stop"
    """Record its batch and fail."""
    REWIND = "rewind"
    """Return to the last checkpoint before the spike and skip the batches since."""


@dataclass
class Guard:
    """Decides on every update whose loss and gradient norm are read; the same on all ranks.

    Attributes:
        spike_start: The step at which the last spike began.
        trusted_step: The checkpoint that the last rewind returned to.
        bad_step: The first update that was not finite, at the latest detection.
        pending_losses: Losses of consecutive steps that have not been checked yet.
    """

    anomalies: Anomalies
    scale: LossScale
    spikes: SpikeDetector
    skipped: int = 0
    rewinds: int = 0
    spike_start: int = 0
    trusted_step: int = 0
    bad_step: int = 0
    pending_losses: list[Scalar] = field(default_factory=list)

    @classmethod
    def resume(cls, section: TrainingSection, progress: Progress) -> Self:
        """Restore the guard from a checkpoint."""
        return cls(
            section.anomalies,
            LossScale(
                section, progress.loss_scale, progress.loss_scale_steps, progress.num_rescaled
            ),
            SpikeDetector(section.anomalies.spike_window_steps, progress.spikes),
            progress.num_skipped,
            progress.num_rewinds,
            trusted_step=progress.trusted_step,
        )

    def record(self, progress: Progress) -> Progress:
        """Return the progress with the guard's state."""
        return progress.model_copy(
            update={
                "num_skipped": self.skipped,
                "num_rescaled": self.scale.halvings,
                "num_rewinds": self.rewinds,
                "trusted_step": self.trusted_step,
                "spikes": self.spikes.state(),
                "loss_scale": self.scale.value if self.scale.is_dynamic else 0.0,
                "loss_scale_steps": self.scale.good_steps,
            }
        )

    @property
    def needs_every_step(self) -> bool:
        """Whether the update must be checked before the next logging step."""
        return self.scale.is_dynamic or self.anomalies.not_finite == "skip"

    @property
    def may_stop_anywhere(self) -> bool:
        """Whether a signal may split an interval of losses that are read together.

        Not where a spike rewinds: it would be seen earlier and leave out other batches than in a
        training that was not stopped.
        """
        return self.anomalies.spike != "rewind"

    def judge(self, step: int, losses: Sequence[float], norm: float) -> Judgement:
        """Decide on update `step` (counted from 1).

        The last of the `losses` is this update's; the others came since the last judgement.
        `norm` is of its gradient.
        """
        first = step - len(losses) + 1
        bad = (at for at, loss in enumerate(losses, start=first) if not math.isfinite(loss))
        # The norms before are not known, but what they corrupted would show in the next loss.
        self.bad_step = next(bad, step)
        is_loss_finite = all(map(math.isfinite, losses))
        if is_loss_finite and math.isfinite(norm):
            return self._judge_course(step, losses)
        # An overflow of float16 is not the fault of the batch: the scale is halved before any
        # policy.
        if is_loss_finite and self.scale.overflowed():
            logger.info("overflow step=%d loss_scale=%g", step, self.scale.value)
            return Judgement.RESCALE
        if self.anomalies.not_finite == "stop" or self.skipped == self.anomalies.max_skipped:
            return Judgement.STOP
        self.skipped += 1
        return Judgement.SKIP

    def _judge_course(self, step: int, losses: Sequence[float]) -> Judgement:
        if self.anomalies.spike == "ignore":
            return Judgement.APPLY
        first = step - len(losses) + 1
        for at, loss in enumerate(losses, start=first):
            if not self.spikes.observe(loss):
                continue
            self.spike_start = at - SUSPECTS + 1
            logger.warning(
                "the loss has been far above its recent level since step=%d: loss=%.6g at step=%d, "
                "policy=%s",
                self.spike_start,
                loss,
                at,
                self.anomalies.spike,
            )
            if self.anomalies.spike == "rewind":
                return Judgement.REWIND
        return Judgement.APPLY

    def begin_rewind(self) -> int:
        """Count a rewind; return the step from which checkpoints are corrupt.

        The update before the first bad loss may have corrupted the weights, unless they gave a good
        loss before.

        Raises:
            TrainingFailedError: there have been too many.
        """
        if self.rewinds == self.anomalies.max_rewinds:
            raise TrainingFailedError(
                f"the loss jumped again at step {self.spike_start}, after {self.rewinds} rewinds",
                evidence="different batches were skipped each time, so no single batch is the "
                "cause",
                action="lower the learning rate, lengthen its warm-up or set training.clipping",
            )
        self.rewinds += 1
        return max(self.spike_start - 1, self.trusted_step + 1)

    def no_way_back(self) -> TrainingFailedError:
        """Return the error that no checkpoint from before the spike exists."""
        return TrainingFailedError(
            f"the loss jumped at step {self.spike_start}, before the first checkpoint",
            action="lower training.evaluate_every_steps, or the learning rate",
        )
