"""Design checks of a study, before any trial: options, values, conditions and the budget."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product

import numpy as np
from pydantic import JsonValue

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.studies.config import Dimension, StudySection
from perennial.studies.pruning import evaluation_interval, rungs
from perennial.studies.records import ADAPTIVE, StudyPlan
from perennial.studies.sampling import propose, space_of
from perennial.studies.space import Space, canonical

Validate = Callable[[Mapping[str, JsonValue]], str]
"""Option → value to why the contract refuses them; empty if it does not."""
MEASURING: Mapping[str, str] = {
    "data": "the rows that are trained on",
    "split": "the rows that are trained on and judged by",
    "expectations": "which data are accepted",
    "skeleton": "the sanity checks",
    "selection": "how a checkpoint is chosen after the training",
    "scoring": "how a model is divided while it is scored",
    "gate": "how a challenger is judged",
    "registry": "how versions are registered",
    "triggers": "when a training starts",
    "study": "the study itself",
    "model.name": "which model it is",
    "model.task": "which task it is",
    "model.initial": "the weights that all trials start with",
    "model.ensemble": "which versions vote as the challenger",
    "training.metric": "what trials are compared by",
    "training.extended_from": "which shorter training is continued",
    "training.seed": "the seed, which the study sets itself (study.seed, seeds_per_trial)",
    "training.evaluate_every_steps": "how often trials are measured",
    "training.evaluation_rows": "the rows that trials are compared on",
    "training.log_every_steps": "what is logged",
    "training.checkpoints": "what is stored",
    "training.watchdog": "how hangs are noticed",
    "training.stragglers": "how slow processes are noticed",
    "training.profile": "what is profiled",
    "training.peak_tflops": "how speed is reported",
    "resources": "where trainings run",
}
"""Options that are no hyperparameters, and what they determine instead."""
MOST_POINTS = 2000
"""Most combinations of values that are held against the contract."""
TRIALS_PER_DIMENSION = 2
"""Fewer trials than this cannot tell the effects of the hyperparameters apart."""


@dataclass(frozen=True)
class Flaw:
    """A mistake in a study's design.

    Attributes:
        place: Keys of the option inside the study that is wrong.
        problem: What is wrong, with the value.
        action: What to change.
    """

    place: tuple[str, ...]
    problem: str
    action: str


def find_flaws(
    study: StudySection, draft: Callable[[], StudyPlan], validate: Validate
) -> list[Flaw]:
    """Return the mistakes of a study's design; of the values only if the rest is right.

    `draft` makes the study's plan, whose data and code may be left empty.
    """
    flaws = list(_wrong_options(study))
    if not flaws and (reason := validate({})):
        problem = f"the contract with the study's fixed values: {reason}"
        flaws = [Flaw(("fixed",), problem, "fix it")]
    if flaws:
        return flaws
    plan = draft()
    try:
        space_of(plan)
    except PerennialError as error:
        return [Flaw((), f"{error.problem}: {error.evidence}", error.action)]
    flaws = list(_missing_values(plan)) or [*_conditions(plan), *_budget(plan)]
    return flaws or list(islice(_refused_values(plan, validate), 20))


def _place(study: StudySection, option: str) -> tuple[str, ...]:
    for table in ("scientific", "nuisance", "fixed"):
        if option in getattr(study, table):
            return table, option
    return ()


def _wrong_options(study: StudySection) -> Iterator[Flaw]:
    for option in (*study.dimensions, *study.fixed):
        parts = option.split(".")
        prefixes = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        found = next((MEASURING[name] for name in prefixes if name in MEASURING), None)
        dimension = study.dimensions.get(option)
        if found is None and dimension is not None and dimension.same_as is None:
            # Trials that differ in nothing else are one training.
            found = "how the work is divided" if TrainingSection.is_layout(parts[1:]) else None
        if found is not None:
            yield Flaw(
                _place(study, option),
                f"{option} is no hyperparameter: it determines {found}",
                "remove it; a study varies options of training and model.options, and `perennial "
                "probe` compares what changes only the speed",
            )


def _missing_values(plan: StudyPlan) -> Iterator[Flaw]:
    for option, dimension in plan.study.dimensions.items():
        target = dimension.same_as
        if target is not None and target not in plan.baseline:
            yield Flaw(
                _place(plan.study, option),
                f"{option} is the same as {target}, which the contract does not have",
                "write the option's whole name, or set it in the contract",
            )


def _conditions(plan: StudyPlan) -> Iterator[Flaw]:
    study, space = plan.study, space_of(plan)
    for option, dimension in study.dimensions.items():
        for parent, allowed in dimension.when.items():
            axis = space.axis(parent)
            if axis.size is None:
                yield Flaw(
                    (*_place(study, option), "when"),
                    f"{option} depends on {parent}, a range of real numbers, of which no single "
                    "value is likely",
                    f"give {parent} choices, or whole numbers",
                )
                continue
            known = set(map(canonical, axis.values()))
            wrong = [value for value in allowed if canonical(value) not in known]
            if wrong or not allowed:
                yield Flaw(
                    (*_place(study, option), "when"),
                    f"{option} depends on {parent} = {wrong[0] if wrong else 'nothing'}, which is "
                    "none of its values",
                    f"name values of {parent}: {', '.join(sorted(known)[:10])}",
                )
    if any(each.when for each in study.dimensions.values()):
        yield from _never_active(study, space)


def _never_active(study: StudySection, space: Space) -> Iterator[Flaw]:
    """Yield hyperparameters whose conditions contradict each other."""
    parents = {parent for each in study.dimensions.values() for parent in each.when}
    axes = [axis for axis in space.axes if axis.option in parents]
    if any(axis.size is None for axis in axes):
        return  # reported already
    rest: dict[str, JsonValue] = {axis.option: axis.value(0.0) for axis in space.axes}
    seen: set[str] = set()
    for levels in islice(product(*(axis.values() for axis in axes)), 100_000):
        searched = rest | dict(zip((axis.option for axis in axes), levels, strict=True))
        seen |= set(space.complete(searched))
    for option in study.dimensions:
        if option not in seen:
            yield Flaw(
                (*_place(study, option), "when"),
                f"the conditions of {option} never hold together",
                "remove one of them, or the hyperparameter",
            )


def _budget(plan: StudyPlan) -> Iterator[Flaw]:
    study, space = plan.study, space_of(plan)
    needed = TRIALS_PER_DIMENSION * len(space.axes)
    counted = {"trials": study.trials}
    if study.exploit is not None:
        counted["exploit.trials"] = study.exploit.trials
    if study.sampler == "grid":
        for axis in space.axes:
            if axis.size is None and axis.dimension.grid_points is None:
                yield Flaw(
                    _place(study, axis.option),
                    f"the grid has no number of values for the range of {axis.option}",
                    "set grid_points",
                )
                return
        del counted["trials"]  # the grid's own size counts
        size = space.grid_size
        if size > study.trials:
            yield Flaw(
                ("trials",),
                f"the grid has {size:,} points, and trials = {study.trials}",
                f"set trials = {size}, choose fewer grid_points, or leave `sampler` out",
            )
    for name, number in counted.items():
        if number < needed:
            yield Flaw(
                tuple(name.split(".")),
                f"{name} = {number} is less than {TRIALS_PER_DIMENSION} for each of the "
                f"{len(space.axes)} hyperparameters that are searched",
                f"set {name} = {needed} or more, or fix some hyperparameters",
            )
        if study.parallel > number:
            yield Flaw(
                ("parallel",),
                f"parallel = {study.parallel} is more than {name} = {number}",
                f"set parallel = {number} or less",
            )
    yield from _pruning(plan)


def _pruning(plan: StudyPlan) -> Iterator[Flaw]:
    study = plan.study
    if study.pruning == "off":
        return
    if "training.steps" in study.dimensions:
        yield Flaw(
            ("pruning",),
            "pruning compares trials at the same steps, but training.steps is searched",
            'set pruning = "off"',
        )
        return
    training = plan.contract["training"]
    steps = int(str(training["steps"])) if isinstance(training, dict) else 0
    if not rungs(steps, evaluation_interval(plan), study.reduction):
        yield Flaw(
            ("pruning",),
            f"no rung lies before the end: trials have {steps} steps, and an evaluation every "
            f"{evaluation_interval(plan)}",
            'lower training.evaluate_every_steps, or set pruning = "off"',
        )


def _refused_values(plan: StudyPlan, validate: Validate) -> Iterator[Flaw]:
    """Yield values that the contract or the task refuses."""
    study, space = plan.study, space_of(plan)
    is_refused = False
    for option, values in _single_values(space, study.dimensions):
        reason = validate(values)
        if reason:
            is_refused = True
            yield Flaw(
                _place(study, option),
                f"the contract refuses {option} = {canonical(values[option])}: {reason}",
                "narrow the range, remove the choice, or make it depend on what it needs (`when`)",
            )
    if is_refused:
        return
    for values in planned_points(plan):
        reason = validate(values)
        if reason:
            shown = ", ".join(f"{name} = {canonical(value)}" for name, value in values.items())
            yield Flaw(
                (), f"the contract refuses a planned trial, {shown}: {reason}",
                "narrow a range, tie one to the other (`same_as`), or use `when`",
            )  # fmt: skip
            return


def _single_values(
    space: Space, dimensions: Mapping[str, Dimension]
) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """Yield both ends or all choices of each hyperparameter, with what it depends on.

    The others stay as the contract has them.
    """
    for axis in space.axes:
        ends = axis.values() if axis.dimension.choices is not None else []
        for value in ends or [axis.value(0.0), axis.value(1.0)]:
            values: dict[str, JsonValue] = {axis.option: value}
            waiting = [axis.option]
            while waiting:
                for parent, allowed in dimensions[waiting.pop()].when.items():
                    if parent not in values:
                        values[parent] = allowed[0]
                        waiting.append(parent)
            tied = {
                name: value
                for name, each in dimensions.items()
                if each.same_as in values
                for value in [space.tied(name, values)]
            }
            yield axis.option, values | tied


def planned_points(plan: StudyPlan) -> Iterator[dict[str, JsonValue]]:
    """Yield the values of the first stage's trials; of one that follows results, what it may try.

    That is the corners of the space, and a sample of it.
    """
    study, space = plan.study, space_of(plan)
    if study.sampler not in ADAPTIVE:
        last = len(space.grid()) if study.sampler == "grid" else study.trials
        for number in range(1, min(last, MOST_POINTS) + 1):
            yield propose(plan, number, [])
    if study.sampler in ADAPTIVE or study.exploit is not None:
        corners = product((0.0, 1.0), repeat=len(space.axes))
        yield from (space.decode(corner) for corner in islice(corners, MOST_POINTS // 2))
        sample = np.random.default_rng(0).random((MOST_POINTS // 2, len(space.axes)))
        yield from (space.decode(point.tolist()) for point in sample)
