"""The `[scoring]` section: how a model is divided while the steps score it."""

from typing import Annotated

from pydantic import Field

from perennial.contracts.section import Section


class ScoringSection(Section):
    """Scoring in select_checkpoint, evaluate_model, register_model and detect_drift."""

    shards: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of processes of the step's machine that divide the weights (FSDP), on a GPU each or on
    the CPU. Predictions stay the same up to rounding. Raise it if the model does not fit one GPU or
    one process; the processes then score all rows together, and the gate does not serve the model
    in a clean process, which would hold it whole. An adapter is divided together with its base. A
    forward pass gathers one of the task's `blocks` after the other; without any, all weights."""

    @property
    def fits_one_process(self) -> bool:
        """Return whether a process may hold the model whole, and so can serve it."""
        return self.shards == 1
