"""Plans and trials of studies that nobody ran: a known surface in the place of trainings."""

import json

from perennial.contracts.training import EvaluationPoint
from perennial.studies.records import StudyPlan, Trial, TrialTraining
from perennial.studies.sampling import propose

RATE, WIDTH = "training.optimizer.learning_rate", "model.options.width"
NAME, MOMENTUM = "training.optimizer.name", "training.optimizer.momentum"
STEPS = "training.steps"


def made_up_plan(direction="minimize", **study):
    """Return a plan over a learning rate and a width, or over the given dimensions."""
    document = {
        "goal": "a good learning rate",
        "nuisance": {RATE: {"log": (1e-4, 1.0)}, WIDTH: {"log_integer": (4, 64)}},
        "trials": 16,
        **study,
    }
    return StudyPlan.model_validate_json(
        json.dumps(
            {
                "model": "made-up",
                "study": document,
                "contract": {"training": {"steps": 90, "evaluate_every_steps": 10}},
                "baseline": {RATE: 1e-3, WIDTH: 16, NAME: "adamw", MOMENTUM: 0.9, STEPS: 90}
                | {"a.b": 0.5, "a.s": "good", "a.n": "good"},
                "metric": "log_loss",
                "direction": direction,
                "snapshot": "s" * 64,
                "code": "c" * 64,
            }
        )
    )


def made_up_trial(plan, number, values, value, **fields):
    """Return a trial that has ended; its curve falls to its value."""
    points = tuple(
        EvaluationPoint(step=step, train_loss=None, metrics={plan.metric: value + 1 / step})
        for step in (10, 20, 30, 60, 90)
    )
    training = TrialTraining(seed=1, fingerprint=f"{number:064d}", value=value, evaluations=points)
    return Trial(
        number=number, stage=plan.stage_of(number), values=values, value=value,
        **{"state": "complete", "trainings": (training,), **fields},
    )  # fmt: skip


def made_up_search(plan, surface, numbers=None):
    """Return the trials of a search over a surface: values → value."""
    trials = []
    for number in numbers or range(plan.last_search + 1):
        needed = set(plan.needed(number))
        values = propose(plan, number, [each for each in trials if each.number in needed])
        trials.append(made_up_trial(plan, number, values, surface(values)))
    return trials
