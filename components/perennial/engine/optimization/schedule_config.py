"""The knobs of the learning rate's course: one section for each shape."""

from itertools import pairwise
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from perennial.contracts.section import Section, tag_of

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]


class Course(Section):
    """What all shapes have in common."""

    steps: PositiveInt | None = None
    """The length that the fractions refer to, and behind which the rate stays as it is. Absent, it
    is `training.steps`; another length is an error unless it is meant."""
    allow_other_length: bool = False
    """Whether `steps` may differ from `training.steps`: to train the first part of a longer
    schedule, or on behind a short one. A schedule that does not end with the training is most
    often a mistake."""

    @model_validator(mode="after")
    def _has_the_length_that_may_differ(self) -> Self:
        if self.allow_other_length and self.steps is None:
            raise ValueError("allow_other_length has no effect without steps; give both or none")
        return self


class WarmedUp(Course):
    """A course that begins with a linear climb."""

    warmup_fraction: Share = 0.05
    """Share of the steps that climb linearly to the peak. Raise it when the first steps diverge."""


class Constant(WarmedUp):
    """The peak throughout: shows, without committing to a budget, how long training pays."""

    shape: Literal["constant"]


class Stepwise(WarmedUp):
    """Constant between milestones, at each of which the rate drops.

    The classic of convolutional networks; for reproducing published results.
    """

    shape: Literal["step"]
    milestones: Annotated[tuple[Fraction, ...], Field(min_length=1)] = (0.5, 0.75)
    """Where it drops, as shares of the steps, in ascending order."""
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """What it is multiplied by at each."""

    @model_validator(mode="after")
    def _milestones_ascend(self) -> Self:
        if any(first >= second for first, second in pairwise(self.milestones)):
            raise ValueError("milestones must ascend")
        return self


class Linear(WarmedUp):
    """A straight line down."""

    shape: Literal["linear"]
    final_fraction: Share = 0.0
    """Share of the peak that is left behind the last step. Raise it to 0.1 when the training will
    be continued later."""


class Cosine(WarmedUp):
    """Half a cosine down: slow, fast, slow. The default."""

    shape: Literal["cosine"] = "cosine"
    final_fraction: Share = 0.0
    """Share of the peak that is left behind the last step. Raise it to 0.1 when the training will
    be continued later."""


class WarmupStableDecay(WarmedUp):
    """Constant, then a decay at the end.

    Choose it to train on for longer: a checkpoint from before the decay can be continued with any
    budget (Hägele et al. 2024, arXiv:2405.18392).
    """

    shape: Literal["wsd"]
    decay_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Share of the steps, the last ones, in which it falls. 0.1 to 0.2 come close to a cosine."""
    decay_shape: Literal["linear", "cosine", "sqrt"] = "sqrt"
    """How it falls; `sqrt`, 1 - √progress, was the best in the paper."""
    final_fraction: Share = 0.0
    """Share of the peak that is left behind the last step."""

    @model_validator(mode="after")
    def _has_room_for_both_ends(self) -> Self:
        if self.warmup_fraction + self.decay_fraction > 1.0:
            raise ValueError("warmup_fraction and decay_fraction are more than all steps")
        return self


class OneCycle(Course):
    """Up and far down in one cycle, while momentum goes the other way.

    For fast training with large rates, mostly of small convolutional networks (Smith & Topin 2018,
    arXiv:1708.07120). The defaults are those of `torch.optim.lr_scheduler.OneCycleLR`.
    """

    shape: Literal["one_cycle"]
    rise_fraction: Fraction = 0.3
    """Share of the steps that climb to the peak."""
    initial_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.04
    """Share of the peak that the first step uses."""
    final_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 4e-6
    """Share of the peak that the last step uses."""
    anneal: Literal["cosine", "linear"] = "cosine"
    """How it climbs and falls."""
    cycle_momentum: bool = True
    """Whether momentum (`sgd`) or the first of `betas` (`adam`, `adamw`, `nadam`) falls while the
    rate climbs, and rises again, in place of the optimizer's constant."""
    lowest_momentum: Share = 0.85
    """Momentum at the peak."""
    highest_momentum: Share = 0.95
    """Momentum at both ends."""

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
                f"{unused[0]} = {getattr(self, unused[0])} has no use under cycle_momentum = "
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
