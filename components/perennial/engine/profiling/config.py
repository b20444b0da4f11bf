"""Options of profiling."""

from typing import Annotated

from pydantic import Field

from perennial.contracts.section import Advanced, Section


class Profile(Section):
    """A short trace that names the training's bottleneck."""

    start_step: Advanced[Annotated[int, Field(ge=1)]] = 10
    """The first traced step; earlier ones are the warm-up. A training resumed after it traces its
    first steps."""
    steps: Advanced[Annotated[int, Field(ge=1, le=50)]] = 5
    """Number of traced steps. More make the trace larger, not better."""
