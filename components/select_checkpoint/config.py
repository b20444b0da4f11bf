"""The `[selection]` section: how the checkpoint is chosen after training."""

from typing import Annotated

from pydantic import Field

from components.contracts.data import ModelSection
from components.contracts.section import Section


class SelectionSection(Section):
    """Retrospective checkpoint selection."""

    metric: str = ""
    """One of the task's metrics, or `loss`; empty means the task's first. Change it when the gate
    judges by another metric."""
    tolerance_standard_errors: Annotated[float, Field(ge=0.0, le=3.0)] = 1.0
    """Of the candidates this close to the best, the earliest is chosen. Set 0 to always take the
    best figure, noise and all. The default is the one-standard-error rule (Breiman et al.,
    Classification and Regression Trees, 1984)."""


class SelectCheckpointConfig(Section):
    """What the step receives."""

    model: ModelSection
    selection: SelectionSection
