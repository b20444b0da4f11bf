"""The `[study]` section: a question about hyperparameters, and how it is answered."""

import json
from math import isfinite
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from perennial.contracts.section import Advanced, Section

Option = Annotated[str, StringConstraints(pattern=r"^[a-z]\w*(\.\w+)+$")]
"""A contract's option by its dotted name, such as `training.optimizer.learning_rate`; the task's
own are under `model.options`."""
Role = Literal["scientific", "nuisance"]
PositiveInt = Annotated[int, Field(ge=1)]
Sampler = Literal["quasi_random", "random", "grid", "tpe", "gp"]
RANGES = ("log", "linear", "integer", "log_integer")
SPACES = (*RANGES, "choices", "same_as")


class Dimension(Section):
    """The space of one hyperparameter: exactly one of the first six fields is given."""

    log: tuple[float, float] | None = None
    """Smallest and largest value, searched on a logarithmic scale: learning rates, weight decay."""
    linear: tuple[float, float] | None = None
    """Smallest and largest value, searched evenly: dropout, label smoothing."""
    integer: tuple[int, int] | None = None
    """Smallest and largest whole number, searched evenly: numbers of layers."""
    log_integer: tuple[int, int] | None = None
    """Smallest and largest whole number, searched on a logarithmic scale: widths, batch sizes."""
    choices: tuple[JsonValue, ...] | None = None
    """The values to choose from, in no order: optimizers, activations."""
    same_as: Option | None = None
    """Another option whose value, `times` a factor, this one takes: it is no dimension of its own
    then. The other one may be outside the study: the contract's value is taken."""
    times: float = 1.0
    """For `same_as`: the factor, such as 0.5 for a micro-batch of half the global batch."""
    step: Annotated[float, Field(gt=0.0)] | None = None
    """For `linear` and `integer`: only values at multiples of this distance from the smallest."""
    grid_points: Annotated[int, Field(ge=2, le=100)] | None = None
    """For `grid` sampling of a range: how many values, ends included."""
    when: dict[Option, tuple[JsonValue, ...]] = Field(default_factory=dict)
    """Other dimension → values for which this one has a meaning: momentum, for instance, only
    where the optimizer is SGD. Elsewhere the contract's own value or default holds."""

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Return smallest and largest value of a range; None for choices and tied values."""
        return self.log or self.linear or self.integer or self.log_integer

    @property
    def is_whole(self) -> bool:
        """Whether values of the range are whole numbers."""
        return self.integer is not None or self.log_integer is not None

    def with_bounds(self, low: float, high: float) -> "Dimension":
        """Return the range with other ends; the same range if too little would be left of it."""
        kind = next(name for name in RANGES if getattr(self, name) is not None)
        ends = (round(low), round(high)) if self.is_whole else (low, high)
        if ends[1] - ends[0] < (self.step or 0.0) or ends[0] == ends[1]:
            return self
        return self.model_copy(update={kind: ends})

    @model_validator(mode="after")
    def _is_one_space(self) -> Self:
        given = [name for name in SPACES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"one of {', '.join(SPACES)} is needed (got {' and '.join(given) or 'none'})"
            )
        if self.choices is not None:
            texts = [json.dumps(each, sort_keys=True) for each in self.choices]
            if len(texts) < 2:
                raise ValueError(f"at least two choices are needed (got {len(texts)})")
            twice = next((each for each in texts if texts.count(each) > 1), None)
            if twice is not None:
                raise ValueError(f"{twice} is listed twice among the choices")
        return self

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.bounds is None:
            return self
        low, high = self.bounds
        if not (isfinite(low) and isfinite(high)):
            raise ValueError(f"both ends of a range are finite numbers (got {low}, {high})")
        if low >= high:
            kind = "empty" if low == high else "inverted"
            raise ValueError(
                f"the range [{low}, {high}] is {kind}: write the smallest value, then the largest"
            )
        if self.log is not None and low <= 0:
            raise ValueError(
                f"a logarithmic range is above 0 (got {low}): use `linear`, or raise it"
            )
        if self.log_integer is not None and low < 1:
            raise ValueError(
                f"a logarithmic range of whole numbers starts at 1 or more (got {low})"
            )
        return self

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        if self.times != 1.0 and self.same_as is None:
            raise ValueError(f"times = {self.times} has an effect only with same_as")
        if not isfinite(self.times) or self.times == 0.0:
            raise ValueError(f"times is a finite number other than 0 (got {self.times})")
        stepped = self.linear or self.integer
        if self.step is not None:
            if stepped is None:
                raise ValueError(f"step = {self.step:g} has an effect only with linear or integer")
            if self.step > stepped[1] - stepped[0]:
                raise ValueError(f"step = {self.step:g} is larger than the range {list(stepped)}")
            if self.integer is not None and not self.step.is_integer():
                raise ValueError(f"the step of whole numbers is one itself (got {self.step:g})")
        if self.grid_points is not None and (self.choices or self.same_as):
            raise ValueError("grid_points has an effect only with a range")
        return self


class Exploitation(Section):
    """The second stage: fewer dimensions of doubt, ranges shrunk around the best trials."""

    trials: PositiveInt
    """Number of trials of the second stage."""
    sampler: Literal["tpe", "gp", "quasi_random"] = "tpe"
    """How the shrunk space is searched."""


class StudySection(Section):
    """One study: which hyperparameters are searched, how, and within which budget."""

    goal: Annotated[str, StringConstraints(min_length=1)]
    """The question in words, as a person would ask it; the report opens with it."""
    scientific: dict[Option, Dimension] = Field(default_factory=dict)
    """Option → space of the hyperparameters whose effect is asked for. Each of their values is
    judged at the best values of the nuisance ones found for it."""
    nuisance: dict[Option, Dimension] = Field(default_factory=dict)
    """Option → space of the hyperparameters that must be tuned again for a fair comparison: nearly
    always the learning rate."""
    fixed: dict[Option, JsonValue] = Field(default_factory=dict)
    """Option → value that all trials have instead of the contract's own, the baseline too.
    Conclusions hold for these values only."""
    trials: Annotated[int, Field(ge=1, le=100_000)] = 32
    """Number of trials of the first stage."""
    exploit: Exploitation | None = None
    """A second stage in a space that is shrunk around the best trials of the first."""
    device_hours: Annotated[float, Field(gt=0.0)] | None = None
    """No trial starts once so many hours of devices (processes times hours) are spent; None sets no
    limit."""
    steps: PositiveInt | None = None
    """Optimizer steps of a trial; None takes the contract's `training.steps`. Shorter trials answer
    more questions, but not those about the length of a training."""
    seeds_per_trial: Annotated[int, Field(ge=1, le=20)] = 1
    """Trainings of each trial, with seeds of their own; its value is their mean. Raise it when the
    variance between seeds is as large as the effect that is looked for."""
    confirmations: Annotated[int, Field(ge=3, le=20)] = 3
    """Trainings, with fresh seeds, of the baseline and of each finalist at the end; the verdict
    rests on them alone, scored on test rows that no trial was chosen by. Two would show their own
    variance too badly for an interval."""
    metric: str = ""
    """The metric that trials are compared by; empty means selection's."""
    min_improvement: Annotated[float, Field(ge=0.0)] = 0.0
    """The smallest improvement worth a change, in the metric's unit. `reject` means that the
    improvement is certainly smaller; 0 makes it: certainly no improvement."""
    sampler: Sampler = "quasi_random"
    """How the first stage covers the space. `quasi_random` (scrambled Sobol points) is the choice
    for exploration; `tpe` and `gp` follow what earlier trials found and answer no question but
    which values are best; `grid` wastes trials on dimensions without an effect."""
    proposed_by: Literal["perennial", "katib"] = "perennial"
    """`katib`: on a cluster, Katib proposes and runs the trials of the first stage, as an
    Experiment; its sampler is the one of the same kind, and the trials are no longer the same at
    each attempt. The rest of the study is the same."""
    pruning: Literal["off", "asha"] = "off"
    """`asha`: stop a trial at a rung where it is not among the best `1 / reduction` of the earlier
    ones (successive halving). Choose it for long trials; curves that cross are judged wrongly."""
    reduction: Advanced[Annotated[int, Field(ge=2, le=10)]] = 3
    """For `asha`: of this many trials, one goes on from each rung; rungs lie this factor apart."""
    parallel: Annotated[int, Field(ge=1, le=1000)] = 2
    """Trials that run at the same time. Results do not depend on when they end, but on this number:
    a trial of `tpe`, `gp` or `asha` knows those that came this many before it, and earlier."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of the sampler and of the trials' trainings."""

    @property
    def fixed_values(self) -> dict[str, JsonValue]:
        """Return option → value that all trials have, their number of steps among them."""
        return self.fixed if self.steps is None else {**self.fixed, "training.steps": self.steps}

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """Return option → space of all hyperparameters that vary."""
        return {**self.scientific, **self.nuisance}

    @model_validator(mode="after")
    def _is_a_design(self) -> Self:
        free = [name for name, each in self.dimensions.items() if each.same_as is None]
        if not free:
            raise ValueError(
                "a study varies at least one hyperparameter: add one under [study.nuisance] or "
                "[study.scientific]"
            )
        named = [*self.scientific, *self.nuisance, *self.fixed]
        twice = next((name for name in named if named.count(name) > 1), None)
        if twice is not None:
            raise ValueError(
                f"{twice} has two roles among scientific, nuisance and fixed: keep one"
            )
        for option, dimension in self.dimensions.items():
            self._check_ties(option, dimension)
        if self.pruning == "off" and self.reduction != 3:
            raise ValueError(
                f'reduction = {self.reduction} has an effect only with pruning = "asha"'
            )
        gridded = [name for name, each in self.dimensions.items() if each.grid_points]
        if gridded and self.sampler != "grid":
            raise ValueError(
                f'grid_points of {gridded[0]} has an effect only with sampler = "grid"'
            )
        if "training.steps" in named and self.steps is not None:
            raise ValueError("steps is set, and training.steps is part of the study: keep one")
        return self

    def _check_ties(self, option: str, dimension: Dimension) -> None:
        target = self.dimensions.get(dimension.same_as or "")
        if dimension.same_as == option:
            raise ValueError(f"{option} is the same as itself")
        if target is not None and target.same_as is not None:
            raise ValueError(
                f"{option} is the same as {dimension.same_as}, which is the same as "
                f"{target.same_as}: name {target.same_as} itself, with the product of both `times`"
            )
        for parent in dimension.when:
            found = self.dimensions.get(parent)
            if parent == option or found is None or found.same_as is not None:
                raise ValueError(
                    f"{option} depends on {parent}, which is not another searched hyperparameter "
                    "of the study: a condition on what does not vary holds always or never"
                )

    def role(self, option: str) -> Role:
        """Return the role of a hyperparameter that varies."""
        return "scientific" if option in self.scientific else "nuisance"
