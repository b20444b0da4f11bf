"""Instruments: observers of a training, called around each update."""

from dataclasses import dataclass

from perennial.engine.profiling.profiler import Profiler
from perennial.engine.resilience.stragglers import StragglerProbe
from perennial.engine.resilience.watchdog import Watchdog


@dataclass(frozen=True)
class Instruments:
    """None of them changes what is computed.

    Attributes:
        watchdog: Notices that nothing happens.
        profiler: Traces a few updates.
        stragglers: Finds the rank that the others wait for.
    """

    watchdog: Watchdog
    profiler: Profiler
    stragglers: StragglerProbe

    def before(self, step: int) -> None:
        """Called before update `step`, counted from 1."""
        self.watchdog.begin("update", step - 1)
        self.profiler.before(step)
        self.stragglers.before(step)

    def after(self, step: int, *, is_interrupted: bool) -> None:
        """Called after it; what is interrupted by an evaluation is not traced any further."""
        self.stragglers.after(step)
        self.profiler.after(step, is_interrupted=is_interrupted)

    def evaluating(self, steps_done: int) -> None:
        """Called before an evaluation."""
        self.watchdog.begin("evaluation", steps_done)

    def checkpointing(self, steps_done: int) -> None:
        """Called before a checkpoint is written, waited for or restored."""
        self.watchdog.begin("checkpoint", steps_done)
