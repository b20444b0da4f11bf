"""First steps: the contract's own optimizer, rate, clipping and batches, for fifty updates."""

import math
from collections.abc import Iterator
from statistics import median

import numpy as np
from pydantic import JsonValue

from perennial.check_skeleton.checks.training.contract_training import (
    CLEAR_ERRORS,
    FEWEST_ROWS,
    STEPS,
    Course,
    Trial,
    run,
    shown_examples,
    travel,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, head_of
from perennial.check_skeleton.verdict import CURVES, PREDICTION_PATHS
from perennial.contracts.errors import PerennialError
from perennial.contracts.skeleton import CheckResult
from perennial.engine.config.optimization import NormClipping
from perennial.engine.task import LABEL, Batch, inputs_of

FACTOR = 100.0
# Updates of one part in a thousand of the weights are healthy. Over the budget they add up: to
# 0.16 to 7 lengths of the weights on healthy tasks, to 0.003 to 0.08 at a hundredth of the rate.
SHORTEST_TRAVEL = 0.1
HOPELESS_TRAVEL = 0.03
# Where the rate is too low, a hundred times the rate lowers the loss 8 to 200 times as much.
FASTER = 4.0
# The budget, or its first part, decides: long weights, such as embeddings that start at 1, need
# not move far.
MOST_STEPS = 1000
LEARNED_SHARE = 0.5
# Within 50 updates the weights grow 1.0 to 1.3 times on healthy tasks, 2.4 times where embeddings
# start small, and 4.3 to 40 times at a hundred times the rate.
LARGEST_GROWTH = 4.0
# Clipping to 1.0 shortens first gradients of norm 5 of language models and of 55 of contrastive
# ones, whose temperature multiplies them; a loss in dollars instead of units has thousands.
CLIPPED_SHARE = 0.9
LARGEST_EXCESS = 100.0
# Norms at the peak rate lie within a factor of 20 of their median on all reference tasks.
SPIKE = 100.0


@check(
    "first_steps",
    expects=(
        f"within {STEPS} updates a loss that does not rise, weights that grow less than "
        f"{LARGEST_GROWTH:g} times, updates that move them by more than {SHORTEST_TRAVEL:g} of "
        "their length over the budget"
    ),
    source="guides: watch the first updates and a fixed batch's predictions; updates of about "
    "1e-3 of the weights; learning rates matter by factors of ten",
)
def check_first_steps(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the contract's training starts well."""
    obstacle = _obstacle(subject)
    if obstacle:
        return judge.skipped(obstacle)
    try:
        trial = Trial.of(subject)
        course = run(subject, trial, 1.0)
    except PerennialError as error:
        return judge.skipped(f"needs an optimizer that can be built: {error.problem}")
    if course.rises or course.growth > LARGEST_GROWTH:
        return _judged_too_high(judge, course, run(subject, trial, 1 / FACTOR), subject, trial)
    if travel(course, subject.training, trial) < SHORTEST_TRAVEL:
        faster = run(subject, trial, FACTOR)
        if _is_better(faster, course) and not _gets_there(subject, trial, faster):
            return _judged_too_low(judge, course, faster, subject, trial)
    return _judged_gradients(judge, course, subject, trial)


def _judged_too_high(
    judge: Judge, course: Course, slower: Course, subject: Subject, trial: Trial
) -> CheckResult:
    evidence = _evidence(subject, trial, course, slower)
    rate = _peak(subject)
    shown = (
        f"loss {course}, weights {course.growth:.3g} times as long at rate {rate:.3g}; "
        f"loss {slower} at a hundredth of it"
    )
    if not slower.is_finite:
        return judge.failed(
            shown,
            hint="the learning rate is not the cause: look for divisions by zero, logarithms of "
            "zero, huge inputs and a huge initialisation",
            **evidence,
        )
    if slower.goes_wrong:
        return judge.warned(
            shown,
            hint="the loss rises at any learning rate: the minimised loss is not the measured "
            "loss; compare augment and training_losses with losses",
            **evidence,
        )
    hint = (
        f"the learning rate is too high: lower optimizer.learning_rate, to between "
        f"{rate / FACTOR:.2g} and {rate / 10:.2g}, or lengthen the warm-up"
    )
    if course.rises or slower.end < course.end:
        return judge.failed(shown, hint=hint, **evidence)
    return judge.warned(shown, hint=hint, **evidence)


def _judged_too_low(
    judge: Judge, course: Course, faster: Course, subject: Subject, trial: Trial
) -> CheckResult:
    rate, path = _peak(subject), travel(course, subject.training, trial)
    conclude = judge.failed if path < HOPELESS_TRAVEL else judge.warned
    return conclude(
        f"the weights move by at most {path:.2g} of their length in {subject.training.steps} "
        f"updates at rate {rate:.3g}; loss {course}, and {faster} at a hundred times the rate",
        hint=_cut_short(subject, course)
        or "the learning rate is too low: raise optimizer.learning_rate, to between "
        f"{10 * rate:.2g} and {FACTOR * rate:.2g}",
        **_evidence(subject, trial, course, faster),
    )


def _cut_short(subject: Subject, course: Course) -> str:
    """Return a hint where clipping, not the learning rate, shortens plain gradient steps."""
    training = subject.training
    share = np.mean([each.is_clipped for each in course.points])
    if not isinstance(training.clipping, NormClipping) or share < CLIPPED_SHARE:
        return ""
    if training.optimizer.name != "sgd":
        return ""  # the others divide by the gradients' size
    norm = median(each.gradient_norm for each in course.settled)
    return (
        f"clipping shortens the steps, not the learning rate: gradients of norm {norm:.3g} are "
        f"cut to {training.clipping.max_norm:g} in {share:.0%} of the updates; raise "
        "clipping.max_norm"
    )


def _judged_gradients(judge: Judge, course: Course, subject: Subject, trial: Trial) -> CheckResult:
    """Judge gradient norms and clipping of a training with a suitable rate."""
    norms = [each.gradient_norm for each in course.points]
    settled = [each.gradient_norm for each in course.settled]
    typical, share = median(settled), np.mean([each.is_clipped for each in course.points])
    ratio = median(each.ratio for each in course.settled)
    evidence = _evidence(subject, trial, course)
    clipping = subject.training.clipping
    limit = clipping.max_norm if isinstance(clipping, NormClipping) else math.inf
    if share >= CLIPPED_SHARE and typical > LARGEST_EXCESS * limit:
        return judge.warned(
            f"gradients of norm {typical:.3g} are clipped to {limit:g} in {share:.0%} of the "
            "updates",
            hint="the limit, not the learning rate, sets the step: look for a huge "
            "initialisation, unscaled targets or summed losses, or raise clipping.max_norm",
            **evidence,
        )
    if max(settled) > SPIKE * typical:
        return judge.warned(
            f"gradient norms jump from {typical:.3g} to {max(settled):.3g}",
            hint="a few examples dominate all others: look for outliers in labels and inputs, and "
            "clip near the 90th percentile of the norms",
            **evidence,
        )
    return judge.passed(
        f"loss {course} in {len(course.points)} updates of {trial.training.global_batch_size}; "
        f"gradient norms {min(norms):.2g} to {max(norms):.2g}, {share:.0%} clipped; an update "
        f"moves the weights by {ratio:.1e} of their length",
        **evidence,
    )


def _obstacle(subject: Subject) -> str:
    """Return why nothing can be trained; empty if training is possible."""
    model = subject.build_model()
    if not any(each.requires_grad for each in model.parameters()):
        return "no parameter is trainable: see parameter_gradients"
    batch = head_of(subject.train, FEWEST_ROWS)
    if not subject.task.losses(model(**inputs_of(batch)), batch).requires_grad:
        return "the loss has no gradient: see parameter_gradients"
    return ""


def _gets_there(subject: Subject, trial: Trial, faster: Course) -> bool:
    """Whether the contract's rate also learns most of it, in the updates of its budget."""
    whole = run(subject, trial, 1.0, min(subject.training.steps, MOST_STEPS))
    return whole.start - whole.end > LEARNED_SHARE * (faster.start - faster.end)


def _is_better(faster: Course, course: Course) -> bool:
    """Whether a higher rate learns significantly and far more."""
    if not faster.is_finite or faster.errors < CLEAR_ERRORS:
        return False
    return faster.start - faster.end > FASTER * max(course.start - course.end, 0.0)


def _peak(subject: Subject) -> float:
    return subject.training.optimizer.peak_rate(subject.training.global_batch_size)


def _evidence(subject: Subject, trial: Trial, *courses: Course) -> dict[str, JsonValue]:
    """Return loss curves, prediction paths, and the numbers behind the verdict."""
    curves = {name: line for course in courses for name, line in _curves(course)}
    first = courses[0]
    points = first.settled
    return {
        CURVES: curves,
        PREDICTION_PATHS: _paths(subject, trial.fixed, first),
        "update_ratio": median(each.ratio for each in points),
        "gradient_norm": median(each.gradient_norm for each in points),
        "clipped_share": float(np.mean([each.is_clipped for each in first.points])),
        "weight_growth": first.growth if math.isfinite(first.growth) else None,
        "travel": travel(first, subject.training, trial),
    }


def _curves(course: Course) -> Iterator[tuple[str, JsonValue]]:
    name = "" if course.factor == 1.0 else f", rate x {course.factor:g}"
    batches = [(float(step), each.loss) for step, each in enumerate(course.points)]
    fixed = [(float(step), float(each.mean())) for step, each in course.losses.items()]
    for kind, line in (("batch", batches), ("fixed examples", fixed)):
        yield f"{kind}{name}", [[step, loss] for step, loss in line if math.isfinite(loss)]


def _paths(subject: Subject, fixed: Batch, course: Course) -> JsonValue:
    """Return example, with its label where that is one number → its prediction at each step."""
    lines: dict[str, JsonValue] = {}
    for position, index in enumerate(shown_examples(fixed).tolist()):
        label = fixed[LABEL][index]
        name = f"example {index}"
        if subject.task.kind != "statistic":
            name += f" (label {float(label):.4g})"
        pairs = ((step, values[position]) for step, values in course.paths.items())
        lines[name] = [[float(step), value] for step, value in pairs if math.isfinite(value)]
    return lines
