"""Spikes: detects a lasting jump of the loss. Imports no torch.

A loss is suspect when it lies above the median of the window by more than chance and by more than a
fluctuation that matters; a spike is a run of suspects. Median and median deviation, unlike mean and
variance, are not moved by the outliers that they are to find.
"""

from bisect import bisect_left, insort
from collections import deque

from perennial.engine.checkpoints.folder import SpikeState

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
