"""The knobs of checkpoints: which are kept, and whether the loop waits for them."""

from typing import Annotated

from pydantic import Field

from perennial.contracts.section import Section

PositiveInt = Annotated[int, Field(ge=1)]


class Checkpoints(Section):
    """Checkpoints are taken at every evaluation; this says what becomes of them.

    The one before the last is kept too while training goes on.
    """

    keep_best: PositiveInt = 3
    """Best checkpoints kept besides the last; raise it for a noisy validation metric."""
    keep_every_steps: PositiveInt | None = None
    """Also keep the checkpoints of multiples of this many steps, for looking back. Costs disk."""
    asynchronous: bool = True
    """Copy the state aside and write it while training goes on. Turn it off when host memory for
    one more copy of the state is missing."""
