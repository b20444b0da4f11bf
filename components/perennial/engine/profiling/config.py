"""The knobs of profiling."""

from typing import Annotated

from pydantic import Field

from perennial.contracts.section import Section


class Profile(Section):
    """A short trace and what it says about the training's bottleneck."""

    start_step: Annotated[int, Field(ge=1)] = 10
    """The first traced update; the ones before warm up allocators and kernels. A training resumed
    behind it traces its first updates."""
    steps: Annotated[int, Field(ge=1, le=50)] = 5
    """Traced updates. More make the trace large, not better."""
