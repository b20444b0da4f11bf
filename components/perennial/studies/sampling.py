"""Sampling: the values of each trial, as a function of the plan and of earlier trials alone.

The same plan and the same earlier trials give the same values, so that a study which was killed
continues with the trials that it would have had.
"""

import hashlib
import importlib.util
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from pydantic import JsonValue
from scipy.stats import qmc

from perennial.contracts.errors import PerennialError
from perennial.studies.config import Dimension
from perennial.studies.records import ADAPTIVE, StudyPlan, Trial
from perennial.studies.space import Axis, Space, canonical

BEST_SHARE, BEST_AT_LEAST = 0.25, 3
"""The trials around which the space is shrunk: the best quarter, and not fewer than three."""
SHRUNK_WIDTH = 0.25
"""Smallest width of a shrunk range, as a share of the original."""
STRATUM_TRIALS = 4
"""Fewest trials of each scientific value for which they are searched one by one."""
Values = dict[str, JsonValue]


def space_of(plan: StudyPlan, dimensions: Mapping[str, Dimension] | None = None) -> Space:
    """Return the space of a study, or with other dimensions of the same options."""
    return Space(plan.study.dimensions if dimensions is None else dimensions, plan.baseline)


def propose(plan: StudyPlan, number: int, earlier: Sequence[Trial]) -> Values:
    """Return the values of a trial of the search; they may depend on `plan.needed(number)`."""
    study = plan.study
    if number == 0:
        return baseline_values(plan)
    if plan.stage_of(number) == "explore":
        return _propose(plan, space_of(plan), study.sampler, number, earlier)
    if study.exploit is None:
        raise ValueError(f"trial {number} is not part of the search")
    shrunk = space_of(plan, shrink(plan, earlier))
    return _propose(plan, shrunk, study.exploit.sampler, number, earlier)


def baseline_values(plan: StudyPlan) -> Values:
    """Return the contract's own values of the hyperparameters that have a meaning there.

    One of a section that the contract lacks, such as `training.averaging`, has none.
    """
    space = space_of(plan)
    known = [each for each in plan.study.dimensions if each in plan.baseline]
    return {each: plan.baseline[each] for each in known if space.is_active(each, plan.baseline)}


def _propose(
    plan: StudyPlan, space: Space, sampler: str, number: int, earlier: Sequence[Trial]
) -> Values:
    # The baseline, the first trial of the first stage, is none of the sampler's.
    first = max(plan.first_of(plan.stage_of(number)), 1)
    place, seed = number - first, _seed(plan, number)
    if sampler == "grid":
        return space.grid()[place]
    strata = scientific_strata(plan, space)
    chosen = strata[place % len(strata)]
    if sampler not in ("random", "quasi_random"):
        return _ask_optuna(plan, space, sampler, chosen, earlier, seed=seed)
    # Each point is tried with all scientific values: none is better by luck with the nuisance ones.
    dimensions, turn = len(space.axes), place // len(strata)
    if sampler == "random":
        point = np.random.default_rng(_seed(plan, first + turn)).random(dimensions).tolist()
    else:
        point = _sobol_point(dimensions, turn, _seed(plan, first))
    return space.decode(point, chosen)


def _seed(plan: StudyPlan, number: int) -> int:
    text = f"{plan.study.seed} sampler {number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _sobol_point(dimensions: int, index: int, seed: int) -> list[float]:
    """Return a point of a scrambled Sobol sequence (Owen 1998), which fills the cube evenly."""
    # From the start each time: trials share no state, and another machine may run the next one.
    sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    with warnings.catch_warnings():
        # A number of points that is not a power of two is less balanced: the design warns of it.
        warnings.simplefilter("ignore", UserWarning)
        point: list[float] = sequence.random(index + 1)[-1].tolist()
    return point


def require_sampler(*samplers: str) -> None:
    """Check that what the samplers need is installed.

    Raises:
        PerennialError: Optuna is missing.
    """
    if set(samplers) & set(ADAPTIVE) and importlib.util.find_spec("optuna") is None:
        raise PerennialError(
            f"the sampler {next(each for each in samplers if each in ADAPTIVE)!r} needs Optuna, "
            "which is not installed",
            action="pip install 'perennial[studies]', or build the trainer image with "
            'EXTRAS="studies"; quasi_random, random and grid need nothing',
        )


def scientific_strata(plan: StudyPlan, space: Space) -> list[Values]:
    """Return the combinations of scientific values that are searched one by one.

    A search that follows the results would soon try the nuisance values of the best scientific one
    only, and the others would be judged at values that nobody tuned. Where the scientific
    hyperparameters have few values without conditions, each gets the same number of trials.
    """
    study = plan.study
    axes = [axis for axis in space.axes if study.role(axis.option) == "scientific"]
    if any(axis.dimension.choices is None or axis.dimension.when for axis in axes):
        return [{}]
    names = [axis.option for axis in axes]
    found = product(*(axis.grid_values() for axis in axes))
    combinations = [dict(zip(names, each, strict=True)) for each in found]
    trials = min([study.trials, *([study.exploit.trials] if study.exploit else [])])
    return combinations if len(combinations) * STRATUM_TRIALS <= trials else [{}]


def shrink(plan: StudyPlan, trials: Sequence[Trial]) -> dict[str, Dimension]:
    """Return the space around the best trials of the first stage: the second stage's.

    Nuisance ranges are cut to where the best trials of each scientific value lie, with a margin;
    choices that none of them has are dropped. Scientific ones are the question, and stay.
    """
    space = space_of(plan)
    explored = [trial for trial in trials if trial.stage == "explore" and trial.is_usable]
    groups: dict[str, list[Trial]] = {}
    scientific = [
        axis.option
        for axis in space.axes
        if plan.study.role(axis.option) == "scientific" and axis.dimension.choices is not None
    ]
    for trial in sorted(explored, key=plan.rank):
        groups.setdefault(canonical([trial.values.get(name) for name in scientific]), []).append(
            trial
        )
    best = [
        trial
        for group in groups.values()
        for trial in group[: max(BEST_AT_LEAST, math.ceil(len(group) * BEST_SHARE))]
    ]
    shrunk = dict(plan.study.dimensions)
    for axis in space.axes:
        if plan.study.role(axis.option) == "nuisance":
            shrunk[axis.option] = _around(axis, [trial.values for trial in best])
    return shrunk


def _around(axis: Axis, best: Sequence[Mapping[str, JsonValue]]) -> Dimension:
    places = [
        min(max(place, 0.0), 1.0)
        for values in best
        if axis.option in values and (place := axis.unit(values[axis.option])) is not None
    ]
    dimension = axis.dimension
    if len(places) < BEST_AT_LEAST:
        return dimension
    if dimension.choices is not None:
        kept = {canonical(axis.value(place)) for place in places}
        left = tuple(each for each in dimension.choices if canonical(each) in kept)
        return dimension.model_copy(update={"choices": left})
    # The mean distance of neighbours: the ends of the range that they were drawn from lie about so
    # far beyond the outermost of them.
    margin = (max(places) - min(places)) / (len(places) - 1)
    low, high = min(places) - margin, max(places) + margin
    missing = max(0.0, SHRUNK_WIDTH - (high - low)) / 2
    ends = axis.number(max(0.0, low - missing)), axis.number(min(1.0, high + missing))
    if ends[0] == ends[1]:
        return dimension
    return dimension.with_bounds(*ends)


def _ask_optuna(
    plan: StudyPlan,
    space: Space,
    sampler: str,
    stratum: Values,
    earlier: Sequence[Trial],
    *,
    seed: int,
) -> Values:
    """Return the values that Optuna's sampler suggests after earlier trials of a stratum.

    An infeasible trial counts as one with the worst value, so that its region is avoided.
    """
    # Only these samplers need it, and it takes half a second.
    import optuna  # noqa: PLC0415
    from optuna.distributions import CategoricalDistribution, FloatDistribution  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    axes = [axis for axis in space.axes if axis.option not in stratum]
    # Only trials of this space and stratum: others have no place on Optuna's axes.
    similar = [
        trial
        for trial in earlier
        if space.contains(trial.values)
        and all(canonical(trial.values.get(name)) == canonical(v) for name, v in stratum.items())
    ]
    kind = optuna.samplers.TPESampler if sampler == "tpe" else optuna.samplers.GPSampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental features, independent sampling
        study = optuna.create_study(direction=plan.direction, sampler=kind(seed=seed))
        for fields in _records_for_optuna(plan, axes, similar):
            params = fields.pop("params")
            study.add_trial(
                optuna.trial.create_trial(
                    params=params,
                    distributions={
                        axis.option: CategoricalDistribution(range(len(axis.dimension.choices)))
                        if axis.dimension.choices is not None
                        else FloatDistribution(0.0, 1.0)
                        for axis in axes
                        if axis.option in params
                    },
                    **fields,
                )
            )
        asked = study.ask()
        values: Values = {}
        for axis in space.axes:
            if axis.option in stratum:
                values[axis.option] = stratum[axis.option]
            elif space.is_active(axis.option, values):
                choices = axis.dimension.choices
                values[axis.option] = (
                    choices[asked.suggest_categorical(axis.option, range(len(choices)))]
                    if choices is not None
                    else axis.value(asked.suggest_float(axis.option, 0.0, 1.0))
                )
    return space.complete(values)


def _records_for_optuna(
    plan: StudyPlan, axes: Sequence[Axis], trials: Sequence[Trial]
) -> Iterator[dict[str, Any]]:
    """Yield the trials as arguments of `optuna.trial.create_trial`, without distributions."""
    from optuna.trial import TrialState  # noqa: PLC0415

    known = [trial.value for trial in trials if trial.is_usable and trial.value is not None]
    worst = (max if plan.direction == "minimize" else min)(known, default=None)
    for trial in trials:
        value = worst if trial.state == "infeasible" else trial.value
        if trial.state == "failed" or value is None:
            continue
        is_pruned = trial.state == "pruned"
        yield {
            "state": TrialState.PRUNED if is_pruned else TrialState.COMPLETE,
            "value": None if is_pruned else value,
            "intermediate_values": {trial.last_step: value} if is_pruned else {},
            "params": {
                axis.option: _place(axis, trial.values[axis.option])
                for axis in axes
                if axis.option in trial.values
            },
        }


def _place(axis: Axis, value: JsonValue) -> float | int:
    """Return a value for Optuna: the index of a choice, or the place in a range."""
    place = axis.unit(value) or 0.0
    choices = axis.dimension.choices
    return min(max(place, 0.0), 1.0) if choices is None else int(place * len(choices))
