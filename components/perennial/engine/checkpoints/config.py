"""Options of checkpoints: which are kept, and whether the loop waits for them."""

from typing import Annotated

from pydantic import Field

from perennial.contracts.section import Advanced, Section

PositiveInt = Annotated[int, Field(ge=1)]


class Checkpoints(Section):
    """Which checkpoints are kept; one is taken at every evaluation.

    While the training runs, the one before the last is kept too.
    """

    keep_best: PositiveInt = 3
    """Best checkpoints kept besides the last; raise it for a noisy validation metric."""
    keep_every_steps: Advanced[PositiveInt | None] = None
    """Also keep the checkpoints at multiples of this number of steps, for later analysis. Costs
    disk space."""
    asynchronous: Advanced[bool] = True
    """Copy the state to host memory and write it while training continues. Turn it off when host
    memory does not suffice for one more copy of the state."""
