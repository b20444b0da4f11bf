"""The `[study]` section: a question about hyperparameters, and how it is answered."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from perennial.contracts.section import Advanced, Section

Option = Annotated[str, StringConstraints(pattern=r"^[a-z]\w*(\.\w+)+$")]
"""A contract's option by its dotted name, such as `training.optimizer.learning_rate`; the task's
own are under `model.options`."""
Role = Literal["scientific", "nuisance"]
PositiveInt = Annotated[int, Field(ge=1)]
Sampler = Literal["quasi_random", "random", "grid", "tpe", "gp"]
SPACES = ("log", "linear", "integer", "log_integer", "choices", "same_as")


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
    """Option → space of the hyperparameters that must be tuned anew for a fair comparison: nearly
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
    def dimensions(self) -> dict[str, Dimension]:
        """Return option → space of all hyperparameters that vary."""
        return {**self.scientific, **self.nuisance}

    def role(self, option: str) -> Role:
        """Return the role of a hyperparameter that varies."""
        return "scientific" if option in self.scientific else "nuisance"
