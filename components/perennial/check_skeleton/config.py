"""The `[skeleton]` section: sizes, budgets and tolerances of the sanity checks, and waivers."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from perennial.check_skeleton.registry import check_names
from perennial.contracts.data import ModelSection
from perennial.contracts.section import Advanced, Section
from perennial.engine.config.training import TrainingSection

INITIAL_LOSS_TOLERANCE = 0.2
"""How far the first loss may lie from theory, as a share of it, beyond sampling noise. Random
outputs of variance v add about v/8 nats for two classes and v/2 for many, 5 to 20 percent under
usual initialisations; a wrong number of classes moves it by more than 25."""

Severity = Literal["fail", "warn", "off"]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class SkeletonSection(Section):
    """Sample sizes, budgets and tolerances of the sanity checks."""

    sample_rows: Annotated[int, Field(ge=64)] = 4096
    """Rows drawn from the training split, and from the validation split. Lower it for examples that
    are large or slow to encode; raise it when a weak signal leaves `input_independent_baseline`
    undecided."""
    baseline_rows: Advanced[Annotated[int, Field(ge=64)]] = 20_000
    """Largest number of rows of the test split on which the baselines are scored."""
    batch_rows: Annotated[int, Field(ge=8)] = 128
    """Examples per update of the short trainings; lower it when memory runs out."""
    training_steps: Advanced[Annotated[int, Field(ge=20)]] = 160
    """Updates on real and on zeroed inputs; raise it for models that start slowly."""
    overfit_rows: Advanced[Annotated[int, Field(ge=4)]] = 32
    """Examples of the one batch that must be memorised."""
    overfit_steps: Advanced[Annotated[int, Field(ge=20)]] = 300
    """Updates spent on memorising it; raise it for deep models."""
    learning_rates: Advanced[
        Annotated[tuple[Annotated[float, Field(gt=0.0)], ...], Field(min_length=1)]
    ] = (1e-3, 1e-2, 1e-4)
    """Adam's learning rates, constant; later ones are tried only when the first fails, so that a
    bad choice is not mistaken for a bug. Put the one that suits your model first."""
    significance: Advanced[Annotated[float, Field(ge=2.0)]] = 3.0
    """Standard errors by which real inputs must beat zeroed ones; 3 passes noise once in 740."""
    trial_seconds: Advanced[Annotated[float, Field(ge=10.0)]] = 120.0
    """Time limit in seconds of a training of six updates in the distributed trials. A slower one is
    stopped, and fails only if one process was far faster. Raise it for models that need seconds per
    update on a CPU."""
    human: dict[str, float] = Field(default_factory=dict)
    """Metric → what people, or today's process, reach on rows like those of the test split. Enter
    measured values only. They are listed as a baseline, and `gate.must_beat` may name `human`."""
    severities: dict[str, Severity] = Field(default_factory=dict)
    """Check name → how its finding counts in this project. `warn` counts its failure as a warning,
    so that it never stops a run; `fail` counts its warning as a failure, so that it always does;
    `off` skips it. Report and model card state it. For a failure that is understood and expected,
    prefer a waiver, which needs a reason."""
    waivers: dict[str, Reason] = Field(default_factory=dict)
    """Check name → why its failure may pass in this project. The failure stays in the report and on
    the model card, with this reason. Remove a waiver as soon as its cause is gone: the report
    names waivers that are not needed."""

    @model_validator(mode="after")
    def _only_checks_are_named(self) -> Self:
        for field, names in (("severities", self.severities), ("waivers", self.waivers)):
            if unknown := sorted(set(names) - set(check_names() if names else ())):
                raise ValueError(
                    f"{field} has unknown checks: {', '.join(unknown)}; "
                    f"the checks are: {', '.join(check_names())}"
                )
        return self


class CheckSkeletonConfig(Section):
    """Input of the step `check_skeleton`."""

    model: ModelSection
    skeleton: SkeletonSection = Field(default_factory=SkeletonSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    """Settings of the training: the checks use its seed, optimizer, schedule and batch size."""
