"""Findings of a study: what the analysis of its trials, and of its confirmations, has found."""

from typing import ClassVar, Literal

from perennial.contracts.artifact import Artifact
from perennial.contracts.section import Section

Length = Literal["longer", "shorter", "enough", "unknown"]


class Boundary(Section):
    """A range at one end of which the best trials lie."""

    option: str
    side: Literal["low", "high"]
    best: int
    """Number of the best trials that were looked at."""
    at_edge: int
    """Number of the best trials in the outer fifth of the range."""
    probability: float
    """Probability of so many there by chance, if the range's end had no effect."""
    proposed: tuple[float, float] | None
    """The next range; None where the contract allows no value beyond this end."""
    text: str


class GoodPoints(Section):
    """How many trials came near the best one."""

    usable: int
    near_best: int
    margin: float
    """How far from the best counts as near, in the metric's unit."""
    more_trials: int
    """Further trials that would give enough, at the present rate; 0 where there are."""
    text: str


class InfeasibleRegion(Section):
    """Values of one hyperparameter at which trials do not complete."""

    option: str
    where: str
    """The rule, such as `>= 0.03`."""
    infeasible_inside: int
    inside: int
    infeasible_outside: int
    outside: int
    p_value: float
    """By Fisher's exact test, corrected for the rules that were tried."""
    proposed: tuple[float, float] | None = None
    """The range without this region; None for choices."""
    text: str


class IsolationPoint(Section):
    """The best of the trials that share a value, or a bin, of one hyperparameter."""

    value: str
    trials: int
    best: float
    """In the metric's unit."""
    equal_budget: float
    """The best to expect of as many trials as the value with the fewest has."""
    spread: float | None
    """Two standard deviations of a trial's value between seeds; None if not known."""


class Isolation(Section):
    """The best over all other hyperparameters, for each value of one."""

    option: str
    points: tuple[IsolationPoint, ...]


class Effect(Section):
    """The share of the trials' differences that a hyperparameter, or a pair of them, explains."""

    options: tuple[str, ...]
    share: float
    low: float
    high: float
    """Bounds of the share, each with 95% confidence."""
    p_value: float
    """Corrected for the number of effects that were looked at."""
    is_clear: bool


class Effects(Section):
    """Importance of the hyperparameters, and interactions of pairs."""

    main: tuple[Effect, ...] = ()
    pairs: tuple[Effect, ...] = ()
    text: str


class Noise(Section):
    """Variance between seeds, against the differences between trials."""

    deviation: float | None
    """Standard deviation of one training between seeds; None without repeated trainings."""
    degrees: int = 0
    tied: tuple[int, ...] = ()
    """Trials that cannot be distinguished from the best one, which is among them."""
    seeds_needed: int | None = None
    """Seeds per trial that would separate the best two; None if it is not known."""
    optimism: float | None = None
    """How much too good the best trial's value is, because it was chosen among many."""
    text: str


class CurveVerdict(Section):
    """Diagnosis of one training of a good trial."""

    trial: int
    seed: int
    best_step: int
    last_step: int
    findings: tuple[str, ...]
    advice: str
    next_steps: int | None


class TrainingLength(Section):
    """Whether trainings should be longer or shorter, by the best trials' curves."""

    advice: Length
    next_steps: int | None
    is_compute_bound: bool | None
    """Whether the metric is limited by the number of steps; None if it is not known."""
    curves: tuple[CurveVerdict, ...] = ()
    text: str


class StudyFindings(Artifact):
    """Findings about the search.

    File tree: `result.json`.
    """

    file_name: ClassVar[str] = "result.json"

    study: str
    """Digest of the plan."""
    trials: dict[str, int]
    """State → number of search trials."""
    best: int | None
    """Number of the best trial; None if none completed."""
    boundaries: tuple[Boundary, ...]
    good_points: GoodPoints
    infeasible: tuple[InfeasibleRegion, ...]
    isolation: tuple[Isolation, ...]
    effects: Effects
    noise: Noise
    length: TrainingLength
