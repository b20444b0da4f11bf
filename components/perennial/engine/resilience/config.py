"""Options of resilience: losses that are not finite or jump, steps that hang, slow processes."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from perennial.contracts.section import Advanced, Section

PositiveInt = Annotated[int, Field(ge=1)]


class Anomalies(Section):
    """Reaction to losses or gradients that are not finite, and to loss spikes."""

    not_finite: Literal["stop", "skip"] = "stop"
    """Loss or gradient is NaN or infinite: `stop` saves the batch's identity and fails; `skip`
    saves it too, skips the update and counts it. Choose `skip` for rare, known bad batches only."""
    max_skipped: Advanced[PositiveInt] = 10
    """More skipped updates than this fail the training: the cause is then not a few bad batches."""
    spike: Literal["ignore", "warn", "rewind"] = "warn"
    """The loss jumps far above its recent level and stays there. `rewind` returns to the last
    checkpoint before the jump and skips the batches that led to it; choose it for long unattended
    trainings."""
    spike_window_steps: Advanced[Annotated[int, Field(ge=8, le=10_000)]] = 100
    """Number of latest losses that a jump is compared with; no jump is detected before there are as
    many. Raise it to a twentieth of a long training's steps, as its losses change slowly."""
    max_rewinds: Advanced[PositiveInt] = 3
    """More rewinds than this fail the training: lower the learning rate instead."""

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        for name, needed, is_used in (
            ("max_skipped", 'not_finite = "skip"', self.not_finite == "skip"),
            ("max_rewinds", 'spike = "rewind"', self.spike == "rewind"),
            ("spike_window_steps", 'spike = "warn" or "rewind"', self.spike != "ignore"),
        ):
            if not is_used and self.changed(name):
                raise ValueError(
                    f"{name} = {getattr(self, name)} has an effect only with {needed}: set that, "
                    "or remove it"
                )
        return self


class Watchdog(Section):
    """Detection of hangs."""

    hang_factor: Annotated[float, Field(gt=1.0)] | None = 20.0
    """A step that takes this many times the median (and `minimum_seconds` at least) makes every
    rank write its stack traces; None turns it off. Raise it for steps of very different lengths."""
    minimum_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """Minimum duration before a step counts as hanging. Raise it where storage or network pause for
    minutes."""
    on_hang: Literal["fail", "dump"] = "fail"
    """Reaction after the stack traces: `fail` ends the processes when the step has not finished in
    twice that time, so that the training restarts from its last checkpoint; `dump` keeps waiting.
    Choose `dump` to attach a debugger."""

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        unused = self.changed("minimum_seconds", "on_hang") if self.hang_factor is None else []
        if unused:
            raise ValueError(
                f"{unused[0]} = {getattr(self, unused[0])!r} has no effect without hang_factor, "
                "which turns the watchdog on: set that, or remove it"
            )
        return self


class Stragglers(Section):
    """Detection of slow processes."""

    every_steps: Annotated[int, Field(ge=10)] | None = 500
    """Steps between two samples; a sample traces a few steps at about 2 ms each. None turns
    sampling off. Lower it while looking for a slow machine."""
