"""Check predictions and metrics: their form, their detail, their direction."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.checks.loss.likelihoods import (
    FEWEST_BINS,
    find_balanced_probabilities,
    make_different_outputs,
)
from perennial.check_skeleton.checks.loss.odds import (
    OF_PROBABILITIES,
    describe_weighted_odds,
    measure_odds_ratio,
)
from perennial.check_skeleton.checks.loss.output_form import (
    find_flattered_metric,
    find_flattered_statistic,
    measure_gain,
)
from perennial.check_skeleton.checks.loss.output_order import (
    describe_exchanged_outputs,
    describe_other_column,
)
from perennial.check_skeleton.checks.loss.served_statistics import (
    describe_counted_gaps,
    describe_disorder,
    describe_other_scale,
    describe_remaining_errors,
    describe_shared_probabilities,
    serve_ideal,
)
from perennial.check_skeleton.checks.loss.units import (
    find_unit,
    is_left_standardised,
    is_mode,
    judge_errors,
    make_perfect_predictions,
)
from perennial.check_skeleton.free_outputs import (
    compute_output,
    fill_unread_outputs,
    find_best_outputs,
    find_training_constant,
    is_density,
    probe,
)
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.models import train_outputs
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Floats, Subject, select_head
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import take_one_each
from perennial.engine.metrics.catalogue import find_metric
from perennial.engine.metrics.metric import UndefinedMetricError
from perennial.engine.task import LABEL, WEIGHT, Batch, Task

_FORMS = {
    "binary": "P(label = 1) of shape [B], and the labels at the loss's minimum",
    "multiclass": "class probabilities of shape [B, C], and the labels at the loss's minimum",
    "regression": "values of shape [B] in the label's unit, and the labels at the loss's minimum",
    "statistic": "finite statistics of shape [B] or [B, K], each from its own example",
}
# Of 256 different outputs: two decimals leave 100 values, clipping at 10 % makes half equal.
KEPT_SHARE = 0.5
MOST_ALIKE = 0.2
# Ratio of the log odds that `predict` gives to those at which the loss balances: 1 for likelihoods,
# with or without class weights; 2 for tanh in place of a sigmoid.
LEAST_RATIO, LARGEST_RATIO = 0.6, 1.6
# Constants that no metric comes within a tenth of: those of losses between mean and median do.
OFF_CENTRE = 0.1
CONSTANTS = np.linspace(0.05, 0.95, 19)
# Margins are near 1; likelihoods have no minimum before they round to 0.
LARGEST_MARGIN = 10.0
RARE = 0.05
BLIND = frozenset({"accuracy", "top_1_accuracy", "error_rate"})


@check(
    "predictions",
    expects=lambda subject: _FORMS[subject.task.kind],
    source="the task's protocol; outputs that minimise the loss must predict the labels",
)
def check_predictions(subject: Subject, judge: Judge) -> CheckResult:
    """Check that predictions have the declared form and agree with the loss."""
    task, batch = subject.task, probe(subject)
    output = compute_output(subject, batch)
    if task.kind == "statistic":
        return _judge_statistics(judge, subject, output)
    predicted = task.predict(output).detach().double().numpy()
    labels = take_one_each(batch[LABEL]).double().numpy()
    wrong = _describe_wrong_form(task, predicted, len(labels))
    if (
        problem := wrong
        or _describe_other_names(subject)
        or _describe_missing_names(task, predicted)
    ):
        return judge.failed(
            problem,
            hint="see `kind` in the task's protocol for what predict returns"
            if wrong
            else "prediction_names must follow the codes that encode gives: answers are served "
            "under the names of other classes",
        )
    free = find_best_outputs(subject)
    ideal = free.ideal
    best = task.predict(ideal).detach().double().numpy()
    if WEIGHT in batch:  # the loss leaves outputs of rows that weigh nothing where they start
        best, labels = (each[batch[WEIGHT].numpy() > 0] for each in (best, labels))
    if task.kind == "regression":
        wanted = find_unit(subject)(labels)
        error, agree = judge_errors(best, wanted, is_density=is_density(subject, ideal, batch))
        shown = f"predictions are off by {error:.2g} standard deviations of the label"
    else:
        chance = best if task.kind == "multiclass" else np.stack([1 - best, best], axis=1)
        place = np.arange(len(labels)), labels.astype(int)
        own, others = chance[place], chance.copy()
        others[place] = -np.inf
        least = others.max(axis=1) if _is_margin_enough(task, ideal, batch) else 0.8
        agree = bool(np.quantile(own - least, 0.05) > 0)
        shown = f"the predicted probability of the right class is {own.mean():.2f} on average"
    if not agree and task.kind == "regression" and _is_scored_as_well(task, best, labels):
        return judge.warned(
            f"at the loss's minimum {shown}, which does not affect any metric",
            hint="correct for a median, a rank or a censored time; otherwise scale the predictions "
            "back in predict",
        )
    if not agree:
        return judge.failed(
            f"at the loss's minimum {shown}",
            hint="losses and predict disagree: order of classes, sigmoid or softmax twice, or a "
            "target that is scaled in losses but not scaled back in predict",
        )
    return _judge_bias(judge, subject) or judge.passed(
        f"shape {list(predicted.shape)}; at the loss's minimum {shown}"
    )


def _judge_bias(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge predictions that are all too high or too low, or in another unit; None if none is."""
    described = (each(subject) for each in (describe_weighted_odds, describe_biased_constant))
    if biased := next((each for each in described if each[0]), None):
        return judge.failed(biased[0], hint=biased[1])
    if is_left_standardised(subject):
        return judge.warned(
            "labels are standardised, and so are predictions of them",
            hint="answers are served, and errors measured, in standard deviations: scale back in "
            "predict by the mean and deviation that fit learned",
        )
    return None


def _describe_missing_names(task: Task, served: Floats) -> str:
    """Describe names of served columns that are too few or too many; empty if they fit."""
    names, width = list(task.prediction_names), served.shape[1] if served.ndim > 1 else 1
    if not names or len(names) == width or served.ndim > 2:
        return ""
    return f"prediction_names has {len(names)} names, but {width} columns are served"


def _describe_other_names(subject: Subject) -> str:
    """Describe a class that is served under another's name; empty if there is none."""
    task, raw = subject.task, subject.train_rows[subject.task.columns.label]
    names = [name.lower() for name in task.prediction_names]
    is_coded = task.kind == "multiclass" and subject.train[LABEL].ndim == 1
    if not is_coded or raw.dtype.is_nested() or len(names) < 2:
        return ""
    prefix = names[0][: names[0].find("_") + 1]
    if all(name.startswith(prefix) for name in names):  # as in probability_cat, probability_dog
        names = [name.removeprefix(prefix) for name in names]
    values = [str(value).lower() for value in raw]
    if len(set(names)) < len(names) or not set(values) <= set(names):
        return ""  # the names are not those of the label's values
    for value, code in zip(values, subject.train[LABEL].flatten().tolist(), strict=True):
        if 0 <= code < len(names) and names[int(code)] != value:
            return f"rows labelled {value!r} have code {int(code)}, which is {names[int(code)]!r}"
    return ""


def _is_margin_enough(task: Task, ideal: Tensor, batch: Batch) -> bool:
    """Whether the loss ends at a margin, and no metric reads how far beyond it an example is.

    Hinge and contrastive losses leave it open; likelihoods and squares do not.
    """
    if set(task.metrics) & OF_PROBABILITIES or float(ideal.abs().max()) > LARGEST_MARGIN:
        return False
    centre = ideal.mean(dim=0, keepdim=True)
    with torch.no_grad():
        there, beyond = (task.losses(each, batch) for each in (ideal, ideal * 1.1 - centre * 0.1))
    return bool(((there == 0) & (beyond == 0)).any())


def _is_scored_as_well(task: Task, best: Floats, labels: Floats) -> bool:
    """Whether predictions at the loss's minimum score no worse than the labels themselves."""
    with made_up("predictions at the loss's minimum"):
        scores, perfect = (task.score(np.nan_to_num(each), labels) for each in (best, labels))
    known = [name for name in scores if name in task.metrics]
    gains = [measure_gain(task, name, scores[name], perfect[name]) for name in known]
    return bool(gains) and min(gains) >= -1e-6


def describe_biased_constant(subject: Subject) -> tuple[str, str]:
    """Describe the loss's best constant, predicted far from where any metric wants a constant.

    That is the mean for squares, the median for absolute errors, a quantile for pinballs. Empty
    where it is one of them or no metric can tell; then the reason, as a hint.
    """
    task, labels = subject.task, take_one_each(subject.train[LABEL]).double().numpy()
    if task.kind != "regression" or labels.ndim > 1:
        return "", ""
    names = [name for name, way in task.metrics.items() if way == "minimize"]
    with made_up("the best constant's prediction"):
        constant, _ = find_training_constant(subject)
        own = float(task.predict(constant).double().mean())
        # The loss weighs rows, and metrics count them: either middle is right.
        tried = [labels.mean(), *np.quantile(labels, CONSTANTS)]
        weights = subject.train.get(WEIGHT, torch.ones(len(labels))).double().numpy()
        half = np.quantile(labels, 0.5, weights=weights, method="inverted_cdf")
        middles = [labels.mean(), np.median(labels), np.average(labels, weights=weights), half]
        if np.abs(own - np.array(middles)).min() < OFF_CENTRE * labels.std():
            return "", ""
        if constant.numel() >= FEWEST_BINS and is_mode(own, labels):
            return "", ""
        scores = [task.score(np.full(len(labels), each), labels) for each in (own, *tried)]
    off = {}
    for name in names:
        found = np.array([each.get(name, np.nan) for each in scores])
        if np.isfinite(found).all() and found.min() > 0:
            off[name] = float(found[0] / found[1:].min() - 1)
    if not off or min(off.values()) <= OFF_CENTRE:
        return "", ""
    least = min(off, key=lambda name: off[name])
    return (
        f"the loss's best constant is predicted as {own:.4g}, the labels' mean is "
        f"{middles[0]:.4g}, their median {middles[1]:.4g}: {least} of other constants is "
        f"{off[least]:.0%} lower",
        "predict gives another number than the loss is minimal for: a part of a mixture without "
        "its weight, a rate without its exposure, a logarithm's mean",
    )


@check(
    "metric_direction",
    expects="each declared metric, finite, better for perfect than for shuffled and for "
    "constant predictions",
    source="selection and gate rely on the declared direction",
)
def check_metric_direction(subject: Subject, judge: Judge) -> CheckResult:
    """Check that metrics are those declared, and better for better predictions."""
    task = subject.task
    if task.kind == "statistic":
        return _judge_measures(judge, subject)
    labels = take_one_each(subject.validation[LABEL]).double().numpy()
    width = task.predict(compute_output(subject, select_head(subject.validation, 2))).shape[-1]
    perfect = find_unit(subject)(make_perfect_predictions(task, labels, width))
    order = np.random.default_rng(subject.seed).permutation(len(labels))
    if len(np.unique(labels)) == 1:
        return judge.skipped("the validation sample holds only one label")
    with made_up("perfect and shuffled predictions"):
        scores, shuffled = task.score(perfect, labels), task.score(perfect[order], labels)
    if undeclared := _judge_names(judge, task, scores, perfect, labels):
        return undeclared
    moved = task.score(perfect[order], labels[order])
    for name in scores:
        values = (scores[name], shuffled[name], moved[name])
        gain = measure_gain(task, name, values[0], values[1])
        if gain == 0:
            # A total or a bias does not depend on the pairing, but must react to wrong predictions.
            wrong = np.roll(perfect, 1, axis=1) if perfect.ndim > 1 else 1.0 - perfect
            if task.kind == "regression":
                wrong = perfect + perfect.std()
            gain = measure_gain(task, name, values[0], task.score(wrong, labels)[name])
        if not np.isfinite(values).all() or gain <= 0:
            return _judge_value(judge, subject, name, values)
        if not np.isclose(values[0], values[2]):
            return judge.failed(
                f"{name} depends on the rows' order",
                hint="score must treat all examples alike; argmax and mean over classes use axis 1",
            )
    flattered = find_flattered_metric(subject, labels, perfect, scores)
    return (
        _judge_other_column(judge, subject)
        or _judge_blindness(judge, subject)
        or _judge_ties(judge, flattered, scores)
    )


def _judge_value(
    judge: Judge, subject: Subject, name: str, values: tuple[float, float, float]
) -> CheckResult:
    """Fail a metric that does not prefer the labels, unless it is defined for the model only."""
    batch = probe(subject)
    predicted = subject.task.predict(compute_output(subject, batch)).detach().double().numpy()
    own = subject.task.score(predicted, take_one_each(batch[LABEL]).double().numpy())[name]
    if not np.isfinite(values).all() and np.isfinite(own):
        return judge.unmeasured(
            f"{name} is {values[0]:.4g} for predictions equal to the labels, which this check "
            "makes up"
        )
    return judge.failed(
        f"{name} ({subject.task.metrics[name]}) is {values[0]:.4g} for perfect and {values[1]:.4g} "
        "for shuffled predictions",
        hint="its direction is declared wrongly, or it does not use the labels",
    )


def _judge_blindness(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge imbalanced classes that only accuracy-like metrics judge; None if balanced."""
    task = subject.task
    if task.kind not in ("binary", "multiclass") or not set(task.metrics) <= BLIND:
        return None
    _, counts = np.unique(subject.train[LABEL].numpy(), return_counts=True)
    most = float(counts.max() / counts.sum())
    if 1 - most >= RARE:
        return None
    return judge.warned(
        f"always predicting the most common class is {most:.1%} accurate; the only metrics are "
        f"{', '.join(subject.task.metrics)}",
        hint="add average_precision, roc_auc or log_loss, which reflect the rare class, and use "
        "one of them in the gate",
    )


def _judge_statistics(judge: Judge, subject: Subject, output: Tensor) -> CheckResult:
    task, batch = subject.task, probe(subject)
    rows, found = len(output), task.statistic(output, batch)
    if found.ndim not in (1, 2) or len(found) != rows or not bool(torch.isfinite(found).all()):
        return judge.failed(
            f"statistics have shape {list(found.shape)} for {rows} examples, or are not finite",
            hint="return one number per example, or a row of numbers",
        )
    group = task.scored_together
    alone = task.statistic(output[:group], select_head(batch, group))
    if not torch.allclose(alone, found[:group], rtol=1e-4, atol=1e-6):
        return judge.failed(
            "the statistic of an example depends on other examples in its batch",
            hint="measure each example by itself; `score` receives all of them together",
        )
    if gaps := describe_counted_gaps(subject):
        return judge.failed(
            gaps, hint="a gap is not a zero: mask it in losses, statistic and score, or fill it"
        )
    return _judge_served_statistics(judge, subject, output, found)


def _judge_served_statistics(
    judge: Judge, subject: Subject, output: Tensor, found: Tensor
) -> CheckResult:
    """Judge what is served beside the statistics that were found."""
    task = subject.task
    ideal = serve_ideal(subject)
    if disorder := ideal and describe_disorder(ideal):
        return judge.failed(
            disorder, hint="predict joins digits, columns or steps otherwise than losses reads them"
        )
    if scaled := ideal and describe_other_scale(ideal):
        return judge.failed(scaled, hint="turn every transform of the target back in predict")
    served = task.predict(output) if task.serves_predictions else found
    if shared := describe_shared_probabilities(subject, served.detach()):
        return judge.failed(
            shared,
            hint="a softmax gives one of several that exclude each other: a sigmoid for each tag, "
            "and binary cross-entropy",
        )
    if unnamed := _describe_missing_names(task, served.detach().numpy()):
        return judge.failed(
            unnamed,
            hint="a task that measures examples serves its statistics: set serves_predictions = "
            "True where predict is to be served, or name the statistic's columns",
        )
    return judge.passed(f"shape {list(found.shape)}")


def _judge_measures(judge: Judge, subject: Subject) -> CheckResult:
    """Judge metrics at the loss's minimum, at the start, in another order and with weights."""
    task, batch = subject.task, probe(subject)
    weights = batch[WEIGHT].double().numpy() if WEIGHT in batch else np.ones(len(batch[LABEL]))
    free = find_best_outputs(subject)
    output = compute_output(subject, batch)
    outputs = fill_unread_outputs(task.losses, free.ideal, output, batch), output
    best, start = (task.statistic(each, batch).double().numpy() for each in outputs)
    if np.array_equal(best, start) or free.floor >= free.model_loss:
        # It reads outputs that the loss does not, as embeddings beside distances, or the search
        # went nowhere from equal ones, as of triplets: those of a model.
        best = task.statistic(train_outputs(subject, batch), batch).double().numpy()
    scores, worse = task.score(best, weights), task.score(start, weights)
    if undeclared := _judge_names(judge, task, scores, best, weights):
        return undeclared
    moved = task.score(start[::-1].copy(), weights[::-1].copy())
    times = 1 + np.arange(len(weights)) % 3
    counted = task.score(np.repeat(start, times, axis=0), np.repeat(weights, times))
    weighted = task.score(start, weights * times) if WEIGHT in batch else counted
    for name in scores:
        values = scores[name], worse[name]
        gain = measure_gain(task, name, *values)
        if gain == 0:
            # An untrained model may find all that a recall asks for; answers of other rows do not.
            strange = task.statistic(outputs[0].roll(1, 0), batch).double().numpy()
            other = task.score(strange, weights).get(name, worse[name])
            gain = measure_gain(task, name, scores[name], other)
        if not np.isfinite(values).all() or gain <= 0:
            return judge.failed(
                f"{name} ({task.metrics[name]}) is {values[0]:.4g} at the loss's minimum and "
                f"{values[1]:.4g} at the start",
                hint="its direction is declared wrongly",
            )
        if not np.isclose(worse[name], moved[name]):
            return judge.failed(
                f"{name} depends on the rows' order", hint="score must treat all examples alike"
            )
        is_by_count = weighted[name] == worse[name] and _reads_counts_alone(task, name, start)
        if not is_by_count and not np.isclose(weighted[name], counted[name]):
            return judge.failed(
                f"{name} is {weighted[name]:.4g} with weights, but {counted[name]:.4g} with as "
                "many copies of each example",
                hint="`labels` are the weights: average the statistics by them",
            )
    if exchanged := describe_exchanged_outputs(subject):
        return judge.failed(
            exchanged,
            hint="loss and metric read the columns of the outputs in two orders, as of quantiles "
            "that one of them sorts; or the loss gets prediction and label exchanged",
        )
    return (
        _judge_other_column(judge, subject)
        or _judge_remaining_errors(judge, subject)
        or _judge_ties(judge, find_flattered_statistic(subject, scores, worse), scores)
    )


def _judge_remaining_errors(judge: Judge, subject: Subject) -> CheckResult | None:
    left = describe_remaining_errors(subject)
    if not left:
        return None
    return judge.failed(
        left,
        hint="loss and metric measure two things: a logarithm or a scale that predict does not "
        "turn back, other steps, or another label",
    )


def _judge_other_column(judge: Judge, subject: Subject) -> CheckResult | None:
    other = describe_other_column(subject)
    if not other:
        return None
    return judge.failed(
        other,
        hint="predict or the statistic takes another column than the one that is meant, as the "
        "first of three quantiles for the median: look at its index",
    )


def _reads_counts_alone(task: Task, name: str, found: Floats) -> bool:
    """Whether a metric is made of counts, such as entities found, which grow with their row.

    Weights that are the sizes of the rows would count them twice.
    """
    if found.ndim == 1:
        return False
    is_count = (found == found.round()).all(axis=0)
    changed, ones = np.where(is_count, found, found + 0.37), np.ones(len(found))
    return bool(is_count.any()) and task.score(changed, ones)[name] == task.score(found, ones)[name]


def _judge_ties(judge: Judge, flattered: str, scores: Mapping[str, float]) -> CheckResult:
    """Fail if a metric scores constant outputs as good; pass otherwise."""
    if flattered:
        return judge.failed(
            flattered,
            hint="ties count as wins, so a constant model looks perfect: rank by the scores ahead "
            "plus half of the ties, or count ties as losses",
        )
    return judge.passed(", ".join(f"{name} {value:.4g}" for name, value in scores.items()))


def _judge_names(
    judge: Judge, task: Task, scores: Mapping[str, float], predictions: Floats, labels: Floats
) -> CheckResult | None:
    """Fail unless scores are the declared metrics, except those undefined on these rows."""
    missing = task.metrics.keys() - scores.keys()
    for name in list(missing):
        if (metric := find_metric(name)) is not None:
            try:
                task.reading(metric).measure(predictions, labels)
            except UndefinedMetricError:
                missing.discard(name)
    if not missing and not scores.keys() - task.metrics.keys() and "loss" not in scores:
        return None
    return judge.failed(
        f"score returns {sorted(scores)}, metrics declares {sorted(task.metrics)}",
        hint="return exactly the declared names; `loss` is added by the engine",
    )


def _describe_wrong_form(task: Task, predicted: Floats, rows: int) -> str:
    """Describe what is wrong with the initial model's predictions; empty if nothing."""
    dimensions = 2 if task.kind == "multiclass" else 1
    if predicted.ndim != dimensions or len(predicted) != rows:
        return f"predictions have shape {list(predicted.shape)} for {rows} examples"
    if not np.isfinite(predicted).all():
        return "predictions are not finite"
    if task.kind != "regression" and (predicted.min() < 0 or predicted.max() > 1):
        return f"probabilities lie in [{predicted.min():.3g}, {predicted.max():.3g}]"
    if task.kind == "multiclass" and not np.allclose(predicted.sum(axis=1), 1, atol=1e-4):
        return f"class probabilities sum to {predicted.sum(axis=1).mean():.4g}"
    return ""


@check(
    "prediction_detail",
    expects="different predictions for different outputs, each from its own output, and "
    "probabilities at which the expected gradient of the loss is zero",
    source="a proper loss is minimal at the true probability, so its gradients for each label "
    "determine the probability that an output stands for",
    tolerance=f"{KEPT_SHARE:.0%} different; log odds within {LEAST_RATIO:g} to "
    f"{LARGEST_RATIO:g} times the loss's",
)
def check_prediction_detail(subject: Subject, judge: Judge) -> CheckResult:
    """Check that predictions keep the detail of their own outputs, on the loss's scale."""
    task = subject.task
    if task.kind == "statistic":
        return judge.skipped("the task measures examples and makes no predictions")
    batch = probe(subject)
    try:
        outputs = make_different_outputs(subject, batch)
        with torch.no_grad():
            predicted = task.predict(outputs)
            part = task.predict(outputs[: len(outputs) // 3])
    except Exception as error:  # the task may reject outputs that no model made
        return judge.skipped(f"predict rejects made-up outputs: {type(error).__name__}: {error}")
    if not torch.allclose(part, predicted[: len(part)], rtol=1e-4, atol=1e-6):
        return judge.failed(
            "a prediction changes if other examples are removed from its batch",
            hint="predict uses its batch: look for min, max, mean, softmax or a rank over "
            "dimension 0. Served alone, an example gets a different prediction",
        )
    found = _judge_detail(judge, subject, predicted)
    return found or _judge_odds(judge, subject, outputs, predicted, batch)


def _judge_detail(judge: Judge, subject: Subject, predicted: Tensor) -> CheckResult | None:
    """Judge predictions that are equal although outputs differ; None if enough differ."""
    rows = predicted.flatten(1).numpy() if predicted.ndim > 1 else predicted.numpy()[:, None]
    wanted = len(rows)
    own, (_, times) = 0.0, np.unique(rows, axis=0, return_counts=True)
    if subject.task.kind == "regression":
        labels = subject.train[LABEL].double().numpy()
        values, repeats = np.unique(labels, return_counts=True)
        # Counts may well be rounded, and the label's own repeats are not a loss of detail.
        wanted = min(wanted, len(values)) if (labels == np.round(labels)).all() else wanted
        own = repeats.max() / len(labels)
    alike = float(times.max()) / len(rows)
    shown = f"{len(rows)} different outputs became {len(times)} different predictions"
    # Tables of a few different inputs have a few outputs, each of them a large share.
    if times.max() == 1 or (len(times) >= KEPT_SHARE * wanted and alike <= MOST_ALIKE + own):
        return None
    return judge.failed(
        f"{shown}, {alike:.0%} of them equal",
        hint="predict rounds, clips, thresholds or saturates the model's outputs: ranking metrics, "
        "log loss and thresholds need full precision. Return unrounded probabilities or values",
        different=len(times),
        alike=round(alike, 4),
    )


def _judge_odds(
    judge: Judge, subject: Subject, outputs: Tensor, predicted: Tensor, batch: Batch
) -> CheckResult:
    ratio = None
    balanced = find_balanced_probabilities(subject, subject.task.losses, outputs, batch)
    if balanced is not None:
        given = predicted if predicted.ndim == 2 else torch.stack([1 - predicted, predicted], dim=1)
        ratio = measure_odds_ratio(given.double(), balanced)
    if ratio is None:
        return judge.passed(f"{len(outputs)} different outputs give as many different predictions")
    shown = f"the predictions' log odds are {ratio:.3g} times those that the loss implies"
    if LEAST_RATIO <= ratio <= LARGEST_RATIO:
        return judge.passed(shown, ratio=round(ratio, 4))
    return judge.failed(
        shown,
        hint="predict and losses use different functions of the output: a temperature or a scale "
        "in one of them only, tanh for sigmoid, sigmoid twice",
        ratio=round(ratio, 4),
    )
