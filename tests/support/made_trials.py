"""Made-up studies: trials whose true answer is known."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import qmc

from perennial.contracts.training import EvaluationPoint
from perennial.studies.analysis.search import Search
from perennial.studies.config import StudySection
from perennial.studies.records import StudyPlan, Trial, TrialTraining

RATE, DECAY, WIDTH = (
    "training.optimizer.learning_rate",
    "training.optimizer.weight_decay",
    "model.options.width",
)
ACTIVATION = "model.options.activation"
SPACE = {RATE: {"log": (1e-4, 1e-1)}, DECAY: {"log": (1e-6, 1e-1)}}


def made_plan(
    nuisance: dict[str, Any] | None = None,
    scientific: dict[str, Any] | None = None,
    **study: Any,
) -> StudyPlan:
    """Return a plan whose metric is maximized."""
    section = StudySection(
        goal="which values are best?",
        nuisance=SPACE if nuisance is None else nuisance,
        scientific=scientific or {},
        **study,
    )
    return StudyPlan(
        model="made",
        study=section,
        contract={},
        metric="auc",
        direction="maximize",
        snapshot="0" * 64,
        code="0" * 64,
    )


def made_trials(
    plan: StudyPlan,
    value: Callable[[dict[str, float]], float | None],
    count: int = 32,
    *,
    noise: float = 0.0,
    seed: int = 0,
) -> list[Trial]:
    """Return quasi-random trials; `value` sees each range's position in [0, 1] and each choice.

    A trial without a value is infeasible. Each has `seeds_per_trial` trainings.
    """
    empty = Search.of(plan, [])
    generator = np.random.default_rng(seed)
    sobol = qmc.Sobol(len(empty.axes), seed=seed)
    points = sobol.random_base2((count - 1).bit_length())[:count]
    trials = []
    for number, point in enumerate(points):
        seen: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for place, (option, axis) in zip(point, empty.axes.items(), strict=True):
            if option in empty.ranges:
                values[option] = axis.at(place)
                seen[option] = axis.position(values[option])
            else:
                choices = axis.dimension.choices or ()
                values[option] = seen[option] = choices[int(place * len(choices))]
        true = value(seen)
        drawn = noise * generator.standard_normal(plan.study.seeds_per_trial)
        trials.append(made_trial(number, values, None if true is None else true + drawn))
    return trials


def made_trial(
    number: int, values: dict[str, Any], found: "Sequence[float] | np.ndarray | None", **more: Any
) -> Trial:
    """Return a trial with one training per value; infeasible without."""
    if found is None:
        return Trial(number=number, stage="explore", values=values, state="infeasible", value=None)
    trainings = tuple(
        TrialTraining(seed=seed, fingerprint=f"{number:04}{seed:060}", value=float(value))
        for seed, value in enumerate(found)
    )
    whole: dict[str, Any] = {"stage": "explore", "state": "complete", "trainings": trainings}
    whole |= more
    return Trial(number=number, values=values, value=float(np.mean(found)), **whole)


def curve(values: Sequence[float], every: int = 10) -> tuple[EvaluationPoint, ...]:
    """Return evaluations whose loss falls as the metric rises."""
    return tuple(
        EvaluationPoint(
            step=every * (index + 1),
            train_loss=1.0 - 0.9 * index / len(values),
            metrics={"auc": value, "loss": 1.0 - value},
        )
        for index, value in enumerate(values)
    )
