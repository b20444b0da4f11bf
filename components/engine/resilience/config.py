"""The knobs of trouble: numbers that are not finite, losses that jump, steps that hang."""

from typing import Annotated, Literal

from pydantic import Field

from components.contracts.section import Section

PositiveInt = Annotated[int, Field(ge=1)]


class Anomalies(Section):
    """What happens when an update is not to be trusted."""

    not_finite: Literal["stop", "skip"] = "stop"
    """Loss or gradient is NaN or infinite: `stop` saves the batch's identity and fails; `skip`
    leaves the update out and counts it. Choose `skip` for rare, known bad batches only."""
    max_skipped: PositiveInt = 10
    """More skipped updates than this fail the training: then it is not the data's fault."""
    spike: Literal["ignore", "warn", "rewind"] = "warn"
    """The loss jumps far above its recent course. `rewind` goes back to the last good checkpoint
    and leaves out the rows that led there."""
    max_rewinds: PositiveInt = 3
    """More rewinds than this fail the training: lower the learning rate instead."""


class Watchdog(Section):
    """Notices a training that stands still."""

    hang_factor: Annotated[float, Field(gt=1.0)] | None = 20.0
    """A step that takes this many times the median (and a minute at least) makes every rank write
    its stacks; None turns it off. Raise it for steps of very different lengths."""
