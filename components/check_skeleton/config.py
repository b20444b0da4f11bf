"""The `[skeleton]` section: how much the checks look at, and what the user lets pass."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from components.contracts.data import ModelSection
from components.contracts.section import Section
from components.engine.config import TrainingSection

CHECK_NAMES = (
    "encoding",
    "serving_inputs",
    "labels",
    "input_scale",
    "statistics_scope",
    "state_round_trip",
    "augmentation",
    "per_example_losses",
    "example_weights",
    "predictions",
    "metric_direction",
    "loss_floor",
    "loss_not_clipped",
    "reproducibility",
    "initial_loss",
    "initial_bias",
    "example_independence",
    "future_independence",
    "input_use",
    "parameter_gradients",
    "overfit_one_batch",
    "input_independent_baseline",
)
"""Every check, in the order in which they run."""

Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class SkeletonSection(Section):
    """Sample sizes, budgets and tolerances of the skeleton checks."""

    sample_rows: Annotated[int, Field(ge=64)] = 4096
    """Rows drawn from the training split, and from the validation split. Lower it for examples that
    are large or slow to encode; raise it when a weak signal leaves `input_independent_baseline`
    undecided."""
    baseline_rows: Annotated[int, Field(ge=64)] = 20_000
    """Most rows of the test split that the baselines are scored on."""
    batch_rows: Annotated[int, Field(ge=8)] = 128
    """Examples per update of the short trainings; lower it when memory runs out."""
    training_steps: Annotated[int, Field(ge=20)] = 160
    """Updates on real and on zeroed inputs; raise it for models that start slowly."""
    overfit_rows: Annotated[int, Field(ge=4)] = 32
    """Examples of the one batch that must be learned by heart."""
    overfit_steps: Annotated[int, Field(ge=20)] = 300
    """Updates spent on learning it; raise it for deep models."""
    learning_rates: Annotated[tuple[Annotated[float, Field(gt=0.0)], ...], Field(min_length=1)] = (
        1e-3,
        1e-2,
        1e-4,
    )
    """Adam's learning rates, constant; later ones are tried only when the first fails, so that a
    bad choice is not mistaken for a bug. Put the one that suits your model first."""
    initial_loss_tolerance: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """How far the first loss may lie from theory, as a share of it, beyond sampling noise. Random
    outputs of variance v add about v/8 nats for two classes and v/2 for many, 5 to 20 percent under
    usual initialisations; a wrong number of classes moves it by more than 25."""
    overfit_tolerance: Annotated[float, Field(gt=0.0, le=0.5)] = 0.05
    """The share of the best constant's loss that counts as zero on one batch."""
    significance: Annotated[float, Field(ge=2.0)] = 3.0
    """Standard errors by which real inputs must beat zeroed ones; 3 passes noise once in 740."""
    waivers: dict[str, Reason] = Field(default_factory=dict)
    """Check name → why its failure may pass in this project. The failure stays in the report, with
    this reason. Remove a waiver as soon as its cause is gone."""

    @model_validator(mode="after")
    def _waivers_name_checks(self) -> Self:
        unknown = sorted(set(self.waivers) - set(CHECK_NAMES))
        if unknown:
            raise ValueError(
                f"waivers names {', '.join(unknown)}, which are no checks; "
                f"the checks are: {', '.join(CHECK_NAMES)}"
            )
        return self


class CheckSkeletonConfig(Section):
    """What `check_skeleton` receives."""

    model: ModelSection
    skeleton: SkeletonSection = Field(default_factory=SkeletonSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    """What the training will be: the checks see its seed, optimizer, schedule and batch size."""
