"""Length: learning curves of the best trials, and how long the next trainings should be."""

from collections import Counter

import numpy as np

from perennial.engine.evaluation.diagnosis import EARLY_SHARE, LATE_SHARE, diagnose
from perennial.studies.analysis.search import Search
from perennial.studies.findings import CurveVerdict, Length, TrainingLength
from perennial.studies.records import Trial, TrialTraining

BEST_TRIALS = 3
"""The playbook looks at the curves of the best few trials."""


def judge_curves(search: Search) -> tuple[CurveVerdict, ...]:
    """Return the diagnosis of each training of the best trials, as of any training's curves."""
    found = (
        _verdict(search, trial, training)
        for trial in search.ranked[:BEST_TRIALS]
        for training in trial.trainings
    )
    return tuple(each for each in found if each is not None)


def _verdict(search: Search, trial: Trial, training: TrialTraining) -> CurveVerdict | None:
    metric, direction, sign = search.plan.metric, search.plan.direction, search.sign
    # Trials are compared by the better of the weights and their moving average: so are curves.
    points = [
        each.model_copy(update={"metrics": each.metrics | {metric: value}})
        for each in training.evaluations
        if "loss" in each.metrics and (value := each.better_of(metric, direction)) is not None
    ]
    if not points:
        return None
    diagnosis = diagnose(points, metric, direction)
    best = max(points, key=lambda point: sign * point.metrics[metric])
    return CurveVerdict(
        trial=trial.number,
        seed=training.seed,
        best_step=best.step,
        last_step=points[-1].step,
        findings=diagnosis.findings,
        advice=diagnosis.advice,
        next_steps=diagnosis.next_steps,
    )


def advise_length(search: Search) -> TrainingLength:
    """Return whether the next trainings should be longer or shorter, by most of the best trials.

    Google's Deep Learning Tuning Playbook, "Determining the number of steps for each training run":
    where the best step of the best trials comes at the end, and curves still rise, training is
    compute-bound: longer trainings are better ones. Where it comes earlier, steps do not limit the
    metric, and a best step in the first tenth asks for fewer.
    """
    curves = judge_curves(search)
    # Without advice and without a length, the evaluations are too few for a diagnosis.
    clear = [each for each in curves if each.advice != "nothing" or each.next_steps is not None]
    lengths: list[Length] = []
    for curve in clear:
        if curve.advice == "longer":
            lengths.append("longer")
        elif curve.advice == "shorter" or curve.best_step <= EARLY_SHARE * curve.last_step:
            lengths.append("shorter")
        else:
            lengths.append("enough")
    if not clear:
        text = curves[0].findings[0] if curves else "no learning curve was recorded"
        return TrainingLength(
            advice="unknown", next_steps=None, is_compute_bound=None, curves=curves, text=text
        )
    advice, count = Counter(lengths).most_common(1)[0]
    if 2 * count <= len(clear) and len(clear) > 1:
        advice = "enough"
    proposed = [
        curve.next_steps
        for curve, length in zip(clear, lengths, strict=True)
        if length == advice and curve.next_steps is not None
    ]
    last = max(curve.last_step for curve in clear)
    steps = int(np.median(proposed)) if proposed and advice != "enough" else last
    late = sum(curve.best_step >= LATE_SHARE * curve.last_step for curve in clear)
    where = f"the best step is in the last quarter in {late} of {len(clear)} trainings"
    text = {
        "longer": f"compute-bound: the best trials still improve at step {last:,} ({where}); train "
        f"{steps:,} steps",
        "shorter": f"not compute-bound: beyond {steps:,} of {last:,} steps, the best trials do not "
        "improve measurably",
        "enough": f"the length of {last:,} steps is neither too short nor too long ({where})",
    }[advice]
    return TrainingLength(
        advice=advice,
        next_steps=steps,
        is_compute_bound=advice == "longer",
        curves=curves,
        text=text,
    )
