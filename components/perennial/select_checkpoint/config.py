"""The `[selection]` section: how the checkpoint is chosen after training."""

from typing import Annotated

from pydantic import Field

from perennial.contracts.data import ModelSection
from perennial.contracts.scoring import ScoringSection
from perennial.contracts.section import Advanced, Layout, Section
from perennial.training_jobs.config import ResourcesSection


class SelectionSection(Section):
    """Checkpoint selection after the training."""

    metric: str = ""
    """One of the task's metrics, or `loss`; empty means the task's first. Change it if the gate
    uses another metric."""
    tolerance_standard_errors: Annotated[float, Field(ge=0.0, le=3.0)] = 0.5
    """Tolerance, in standard errors of the difference to the best. The earliest candidate within it
    is chosen; the latest, if the curve still improves. 0 chooses the best metric, including its
    noise; 1 is the one-standard-error rule (Breiman et al., Classification and Regression Trees,
    1984), which chooses earlier steps. In 15,000 simulated trainings the default lost at most as
    much as the best raw metric, the last checkpoint and early stopping in each of 15 settings; 1
    lost more than the best raw metric in two (benchmarks/results/selection_regret.md)."""
    limits: dict[str, float] = Field(default_factory=dict)
    """Guard metric → worst value that a checkpoint may have on all validation rows; a worse
    checkpoint is not chosen, whatever its `metric`. Set it if the best by one metric may be
    unusable by another. If no checkpoint is within all limits, the step fails."""
    average_last: Annotated[int, Field(ge=2)] | None = None
    """Also score the mean of the weights of this many newest kept checkpoints. Set it for a
    training at a constant learning rate, with `training.checkpoints.keep_every_steps`, which keeps
    more than the best."""
    average_best: Annotated[int, Field(ge=2)] | None = None
    """Also score the mean of the weights of this many best kept checkpoints. Set it if they are
    equal within noise and from one basin, as at the end of a training."""
    processes: Advanced[Annotated[int, Field(ge=1, le=256)] | None] = None
    """Number of processes that share the validation rows; the results are equal bit for bit. If not
    set, the first checkpoint is scored in one process and, if that saves eight seconds or more, the
    others in one process per GPU, or else per free core, up to the training's processes. Set 1 if
    memory can hold only one model."""


class SelectCheckpointConfig(Section):
    """Configuration of the step."""

    model: ModelSection
    selection: SelectionSection = SelectionSection()
    scoring: Layout[ScoringSection] = ScoringSection()
    resources: Layout[ResourcesSection] = ResourcesSection()
