"""The `[scoring]` section: how a model is divided while the steps score it."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from perennial.contracts.section import Section


class ScoringSection(Section):
    """Scoring in select_checkpoint, evaluate_model, register_model and detect_drift."""

    shards: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of processes that divide the weights (FSDP), on a GPU each or on the CPU. Predictions
    stay the same up to rounding. Raise it if the model does not fit one GPU or one process; the
    processes then score all rows together, and the gate does not serve the model in a clean
    process, which would hold it whole. An adapter is divided together with its base. A forward pass
    gathers one of the task's `blocks` after the other; without any, all weights."""
    machines: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of machines that the shards are divided over evenly. With 1 they are processes of the
    step's pod. Raise it if they do not fit one machine: each scoring is then a job of
    `resources.launcher`, whose pods have what `[resources.cluster]` grants each process. With a
    local launcher all run on this machine."""

    @model_validator(mode="after")
    def _divides_evenly(self) -> Self:
        if self.shards % self.machines:
            raise ValueError(
                f"scoring.shards = {self.shards} is not divisible by scoring.machines = "
                f"{self.machines}"
            )
        return self

    @property
    def fits_one_process(self) -> bool:
        """Return whether a process may hold the model whole, and so can serve it."""
        return self.shards == 1
