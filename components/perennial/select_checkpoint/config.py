"""The `[selection]` section: how the checkpoint is chosen after training."""

from typing import Annotated

from pydantic import Field

from perennial.contracts.data import ModelSection
from perennial.contracts.section import Section


class SelectionSection(Section):
    """Retrospective checkpoint selection."""

    metric: str = ""
    """One of the task's metrics, or `loss`; empty means the task's first. Change it when the gate
    judges by another metric."""
    tolerance_standard_errors: Annotated[float, Field(ge=0.0, le=3.0)] = 0.5
    """Of the candidates this close to the best, by the standard error of the difference, the
    earliest is chosen; the latest, where the curve still improves. Set 0 to take the best figure,
    noise and all, and 1 for the one-standard-error rule (Breiman et al., Classification and
    Regression Trees, 1984), which takes earlier steps. In 15,000 simulated trainings the default
    gave away at most as much as the best raw figure, the last checkpoint and early stopping in each
    of 15 settings, 1 more than the best raw figure in two (benchmarks/results/selection_regret.md).
    """
    limits: dict[str, float] = Field(default_factory=dict)
    """Guard metric → worst value that a checkpoint may have on all validation rows; one beyond is
    not chosen, however good by `metric`. Set it where the best by one metric may be unusable by
    another. When no checkpoint keeps all limits, the step fails and nothing ships."""
    average_last: Annotated[int, Field(ge=2)] | None = None
    """Also try the mean of the weights of so many newest kept checkpoints. Turn it on for a
    training at a constant learning rate, with `training.checkpoints.keep_every_steps`, which keeps
    more than the best."""
    average_best: Annotated[int, Field(ge=2)] | None = None
    """Also try the mean of the weights of so many best kept checkpoints. Turn it on when they are
    equal within noise and come from one basin, as at the end of a training."""
    processes: Annotated[int, Field(ge=1, le=256)] | None = None
    """How many processes share the validation rows; the figures are the same, bit for bit. None
    scores the first checkpoint in one and, if that saves eight seconds or more, the others in as
    many as there are GPUs, else as the training had and cores are free. Set 1 where memory holds
    one model only."""


class SelectCheckpointConfig(Section):
    """What the step receives."""

    model: ModelSection
    selection: SelectionSection
