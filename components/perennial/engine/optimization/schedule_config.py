"""Options of the learning rate schedule: one section for each shape."""

from itertools import pairwise
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from perennial.contracts.section import Advanced, Section, tag_of

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]


class Course(Section):
    """Options of all shapes."""

    steps: Advanced[PositiveInt | None] = None
    """Number of steps that the fractions refer to; after it the rate is constant. The default is
    `training.steps`; another length is an error unless `allow_other_length` is set."""
    allow_other_length: Advanced[bool] = False
    """Allow `steps` to differ from `training.steps`: to train the first part of a longer schedule,
    or to continue after a short one. A schedule that does not end with the training is usually a
    mistake."""

    @model_validator(mode="after")
    def _has_the_length_that_may_differ(self) -> Self:
        if self.allow_other_length and self.steps is None:
            raise ValueError("allow_other_length has no effect without steps; give both or none")
        return self


class WarmedUp(Course):
    """Options of schedules with a linear warm-up."""

    warmup_fraction: Share = 0.05
    """Share of the steps with a linear warm-up to the peak. Raise it when the first steps
    diverge."""


class Constant(WarmedUp):
    """Constant at the peak: shows for how many steps training pays off."""

    shape: Literal["constant"]


class Stepwise(WarmedUp):
    """Constant between milestones, at each of which the rate drops.

    The classic schedule of convolutional networks; use it to reproduce published results.
    """

    shape: Literal["step"]
    milestones: Annotated[tuple[Fraction, ...], Field(min_length=1)] = (0.5, 0.75)
    """Steps at which the rate drops, as shares of all steps, in ascending order."""
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Factor of the rate at each milestone."""

    @model_validator(mode="after")
    def _milestones_ascend(self) -> Self:
        if any(first >= second for first, second in pairwise(self.milestones)):
            raise ValueError("milestones must be in ascending order")
        return self


class Linear(WarmedUp):
    """Linear decay."""

    shape: Literal["linear"]
    final_fraction: Share = 0.0
    """Final rate, as a share of the peak. Raise it to 0.1 when the training will be continued
    later."""


class Cosine(WarmedUp):
    """Cosine decay: slow, fast, slow. The default."""

    shape: Literal["cosine"] = "cosine"
    final_fraction: Share = 0.0
    """Final rate, as a share of the peak. Raise it to 0.1 when the training will be continued
    later."""


class WarmupStableDecay(WarmedUp):
    """Warm-up, stable, decay: constant, then a decay at the end.

    Choose it if you may extend the training: a checkpoint from before the decay can be continued
    for any number of steps (Hägele et al. 2024, arXiv:2405.18392).
    """

    shape: Literal["wsd"]
    decay_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Share of the steps, at the end, in which the rate decays. 0.1 to 0.2 come close to a
    cosine."""
    decay_shape: Advanced[Literal["linear", "cosine", "sqrt"]] = "sqrt"
    """Shape of the decay; `sqrt`, 1 - √progress, was the best in the paper."""
    final_fraction: Share = 0.0
    """Final rate, as a share of the peak."""

    @model_validator(mode="after")
    def _has_room_for_both_ends(self) -> Self:
        if self.warmup_fraction + self.decay_fraction > 1.0:
            raise ValueError("the sum of warmup_fraction and decay_fraction exceeds 1")
        return self


class OneCycle(Course):
    """One cycle: the rate rises, then falls far below its start; momentum does the opposite.

    For fast training with large rates, mostly of small convolutional networks (Smith & Topin 2018,
    arXiv:1708.07120). The defaults are those of `torch.optim.lr_scheduler.OneCycleLR`.
    """

    shape: Literal["one_cycle"]
    rise_fraction: Fraction = 0.3
    """Share of the steps in which the rate rises to the peak."""
    initial_fraction: Advanced[Annotated[float, Field(gt=0.0, le=1.0)]] = 0.04
    """Initial rate, as a share of the peak."""
    final_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 4e-6
    """Final rate, as a share of the peak."""
    anneal: Advanced[Literal["cosine", "linear"]] = "cosine"
    """Shape of rise and fall."""
    cycle_momentum: Advanced[bool] = True
    """Let momentum (`sgd`) or the first of `betas` (`adam`, `adamw`, `nadam`) fall while the rate
    rises, and rise again, instead of staying constant."""
    lowest_momentum: Advanced[Share] = 0.85
    """Momentum at the peak."""
    highest_momentum: Advanced[Share] = 0.95
    """Momentum at the first and the last step."""

    @model_validator(mode="after")
    def _momenta_are_in_order(self) -> Self:
        if self.lowest_momentum > self.highest_momentum:
            raise ValueError("lowest_momentum must not exceed highest_momentum")
        return self

    @model_validator(mode="after")
    def _momenta_are_used(self) -> Self:
        unused = self.changed("lowest_momentum", "highest_momentum")
        if unused and not self.cycle_momentum:
            raise ValueError(
                f"{unused[0]} = {getattr(self, unused[0])} has no effect with cycle_momentum = "
                "false: set it to true, or remove the momentum"
            )
        return self


Schedule: TypeAlias = Annotated[
    Annotated[Constant, Tag("constant")]
    | Annotated[Stepwise, Tag("step")]
    | Annotated[Linear, Tag("linear")]
    | Annotated[Cosine, Tag("cosine")]
    | Annotated[WarmupStableDecay, Tag("wsd")]
    | Annotated[OneCycle, Tag("one_cycle")],
    Discriminator(tag_of("shape", "cosine")),
]
