"""Check `predictions` and `metric_direction`: declared forms, in agreement with the loss."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perennial.check_skeleton.checks.loss.claims import (
    describe_doubled_correction,
    describe_imbalance,
)
from perennial.check_skeleton.checks.loss.outputs_alike import (
    find_flattered_metric,
    find_flattered_statistic,
)
from perennial.check_skeleton.free_outputs import best_outputs, output_of, probe
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, head_of
from perennial.contracts.skeleton import CheckResult
from perennial.engine.metrics.catalogue import find_metric
from perennial.engine.metrics.metric import UndefinedMetricError
from perennial.engine.task import LABEL, WEIGHT, Task

_FORMS = {
    "binary": "P(label = 1) of shape [B], and the labels at the loss's minimum",
    "multiclass": "class probabilities of shape [B, C], and the labels at the loss's minimum",
    "regression": "values of shape [B] in the label's unit, and the labels at the loss's minimum",
    "statistic": "finite statistics of shape [B] or [B, K], each from its own example",
}


@check(
    "predictions",
    expects=lambda subject: _FORMS[subject.task.kind],
    source="the task's protocol; outputs that minimise the loss must predict the labels",
)
def check_predictions(subject: Subject, judge: Judge) -> CheckResult:
    """Check that predictions have the declared form and agree with the loss."""
    task, batch = subject.task, probe(subject)
    output = output_of(subject, batch)
    if task.kind == "statistic":
        return _judge_statistics(judge, subject, output)
    predicted = task.predict(output).detach().double().numpy()
    labels = batch[LABEL].double().numpy()
    wrong = _wrong_form(task, predicted, len(labels))
    if problem := wrong or _describe_other_names(subject):
        return judge.failed(
            problem,
            hint="see `kind` in the task's protocol for what predict returns"
            if wrong
            else "prediction_names must follow the codes that encode gives: answers are served "
            "under the names of other classes",
        )
    best = task.predict(best_outputs(subject).ideal).detach().double().numpy()
    if task.kind == "regression":
        off = best - _one_each(labels)
        error = float(np.sqrt(np.mean(off**2)) / max(float(np.std(labels)), 1e-12))
        agree, shown = (
            error < 0.1,
            f"predictions are off by {error:.2g} standard deviations of the label",
        )
    else:
        chance = best if task.kind == "multiclass" else np.stack([1 - best, best], axis=1)
        own = chance[np.arange(len(labels)), labels.astype(int)]
        agree = bool(np.quantile(own, 0.05) > 0.8)
        shown = (
            f"the predicted probability of the right class is {float(own.mean()):.2f} on average"
        )
    if not agree and task.kind == "regression" and _scored_as_well(task, best, labels):
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
    if doubled := describe_doubled_correction(subject):
        return judge.failed(
            doubled,
            hint="predict corrects for the weight of a class in the wrong direction: subtract its "
            "logarithm from the logit if class 1 has the weight",
        )
    return judge.passed(f"shape {list(predicted.shape)}; at the loss's minimum {shown}")


def _describe_other_names(subject: Subject) -> str:
    """Describe a class that is served under another's name; empty if there is none."""
    task, raw = subject.task, subject.train_rows[subject.task.columns.label]
    names = [name.lower() for name in task.prediction_names]
    if task.kind != "multiclass" or raw.dtype.is_nested() or len(names) < 2:
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


def _scored_as_well(task: Task, best: NDArray[np.float64], labels: NDArray[np.float64]) -> bool:
    """Whether predictions at the loss's minimum score no worse than the labels themselves."""
    with made_up("predictions at the loss's minimum"):
        right = _one_each(labels)
        scores, perfect = (task.score(np.nan_to_num(each), labels) for each in (best, right))
    gains = [
        (scores[name] - perfect[name]) * (1 if task.metrics[name] == "maximize" else -1)
        for name in scores
        if name in task.metrics
    ]
    return bool(gains) and min(gains) >= -1e-6


@check(
    "metric_direction",
    expects=(
        "each declared metric, finite, better for perfect than for shuffled and for "
        "constant predictions"
    ),
    source="selection and gate rely on the declared direction",
)
def check_metric_direction(subject: Subject, judge: Judge) -> CheckResult:
    """Check that metrics are those declared, and better for better predictions."""
    task, generator = subject.task, np.random.default_rng(subject.seed)
    if task.kind == "statistic":
        return _judge_measures(judge, subject)
    labels = subject.validation[LABEL].double().numpy()
    width = task.predict(output_of(subject, head_of(subject.validation, 2))).shape[-1]
    perfect = _perfect_predictions(task, labels, width)
    order = generator.permutation(len(labels))
    if len(np.unique(labels)) == 1:
        return judge.skipped("the validation sample holds only one label")
    with made_up("perfect and shuffled predictions"):
        scores, shuffled = task.score(perfect, labels), task.score(perfect[order], labels)
    if not _are_declared(task, scores, perfect, labels):
        return judge.failed(
            f"score returns {sorted(scores)}, metrics declares {sorted(task.metrics)}",
            hint="return exactly the declared names; `loss` is added by the engine",
        )
    moved = task.score(perfect[order], labels[order])
    for name in scores:
        direction = task.metrics[name]
        values = (scores[name], shuffled[name], moved[name])
        gain = values[0] - values[1] if direction == "maximize" else values[1] - values[0]
        if gain == 0:
            # A total or a bias does not depend on the pairing, but must react to wrong predictions.
            wrong = task.score(_moved_predictions(task, perfect), labels)[name]
            gain = values[0] - wrong if direction == "maximize" else wrong - values[0]
        if not np.isfinite(values).all() or gain <= 0:
            return judge.failed(
                f"{name} ({direction}) is {values[0]:.4g} for perfect and {values[1]:.4g} for "
                "shuffled predictions",
                hint="its direction is declared wrongly, or it does not use the labels",
            )
        if not np.isclose(values[0], values[2]):
            return judge.failed(
                f"{name} depends on the rows' order",
                hint="score must treat all examples alike; argmax and mean over classes use axis 1",
            )
    flattered = find_flattered_metric(subject, labels, perfect, scores)
    return _judge_blindness(judge, subject) or _judge_ties(judge, flattered, scores)


def _judge_blindness(judge: Judge, subject: Subject) -> CheckResult | None:
    blind = describe_imbalance(subject)
    if not blind:
        return None
    return judge.warned(
        f"{blind}; the only metrics are {', '.join(subject.task.metrics)}",
        hint="add average_precision, roc_auc or log_loss, which reflect the rare class, and use "
        "one of them in the gate",
    )


def _judge_statistics(judge: Judge, subject: Subject, output: Tensor) -> CheckResult:
    task, batch = subject.task, probe(subject)
    rows = len(batch[LABEL])
    found = task.statistic(output, batch)
    if found.ndim not in (1, 2) or len(found) != rows or not bool(torch.isfinite(found).all()):
        return judge.failed(
            f"statistics have shape {list(found.shape)} for {rows} examples, or are not finite",
            hint="return one number per example, or a row of numbers",
        )
    group = task.scored_together
    alone = task.statistic(output[:group], head_of(batch, group))
    if not torch.allclose(alone, found[:group], rtol=1e-4, atol=1e-6):
        return judge.failed(
            "the statistic of an example depends on other examples in its batch",
            hint="measure each example by itself; `score` receives all of them together",
        )
    return judge.passed(f"shape {list(found.shape)}")


def _judge_measures(judge: Judge, subject: Subject) -> CheckResult:
    """Judge metrics at the loss's minimum, at the start, in another order and with weights."""
    task, batch = subject.task, probe(subject)
    weights = batch[WEIGHT].double().numpy() if WEIGHT in batch else np.ones(len(batch[LABEL]))
    outputs = best_outputs(subject).ideal, output_of(subject, batch)
    best, start = (task.statistic(each, batch).double().numpy() for each in outputs)
    scores, worse = task.score(best, weights), task.score(start, weights)
    if not _are_declared(task, scores, best, weights):
        return judge.failed(
            f"score returns {sorted(scores)}, metrics declares {sorted(task.metrics)}",
            hint="return exactly the declared names; `loss` is added by the engine",
        )
    moved = task.score(start[::-1].copy(), weights[::-1].copy())
    times = 1 + np.arange(len(weights)) % 3
    counted = task.score(np.repeat(start, times, axis=0), np.repeat(weights, times))
    weighted = task.score(start, weights * times) if WEIGHT in batch else counted
    for name in scores:
        direction = task.metrics[name]
        values = scores[name], worse[name]
        gain = values[0] - values[1] if direction == "maximize" else values[1] - values[0]
        if not np.isfinite(values).all() or gain <= 0:
            return judge.failed(
                f"{name} ({direction}) is {values[0]:.4g} at the loss's minimum and "
                f"{values[1]:.4g} at the start",
                hint="its direction is declared wrongly",
            )
        if not np.isclose(worse[name], moved[name]):
            return judge.failed(
                f"{name} depends on the rows' order", hint="score must treat all examples alike"
            )
        if not np.isclose(weighted[name], counted[name]):
            return judge.failed(
                f"{name} is {weighted[name]:.4g} with weights, but {counted[name]:.4g} with as "
                "many copies of each example",
                hint="`labels` are the weights: average the statistics by them",
            )
    return _judge_ties(judge, find_flattered_statistic(subject, scores, worse), scores)


def _judge_ties(judge: Judge, flattered: str, scores: Mapping[str, float]) -> CheckResult:
    """Fail if a metric scores constant outputs as good; pass otherwise."""
    if flattered:
        return judge.failed(
            flattered,
            hint="ties count as wins, so a constant model looks perfect: rank by the scores ahead "
            "plus half of the ties, or count ties as losses",
        )
    return judge.passed(", ".join(f"{name} {value:.4g}" for name, value in scores.items()))


def _are_declared(
    task: Task,
    scores: Mapping[str, float],
    predictions: NDArray[np.float64],
    labels: NDArray[np.float64],
) -> bool:
    """Whether scores are the declared metrics, except those undefined on these rows."""
    missing = task.metrics.keys() - scores.keys()
    for name in list(missing):
        metric = find_metric(name)
        if metric is not None:
            try:
                task.reading(metric).measure(predictions, labels)
            except UndefinedMetricError:
                missing.discard(name)
    return not missing and not scores.keys() - task.metrics.keys() and "loss" not in scores


def _moved_predictions(task: Task, perfect: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return predictions that are wrong for every example."""
    moved: NDArray[np.float64] = 1.0 - perfect
    if task.kind == "regression":
        moved = perfect + perfect.std()
    elif task.kind == "multiclass":
        moved = np.take(perfect, np.arange(-1, perfect.shape[1] - 1), axis=1)
    return moved


def _wrong_form(task: Task, predicted: NDArray[np.float64], rows: int) -> str:
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


def _one_each(labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return labels of shape [B, 1] as [B], which is the form of predictions."""
    return labels.reshape(-1) if labels.size == len(labels) else labels


def _perfect_predictions(
    task: Task, labels: NDArray[np.float64], classes: int
) -> NDArray[np.float64]:
    if task.kind == "regression":
        return _one_each(labels)
    if task.kind == "binary":
        return np.where(labels > 0.5, 0.999, 0.001)
    chance = np.full((len(labels), classes), 0.001 / classes)
    chance[np.arange(len(labels)), labels.astype(int)] += 1 - 0.001
    return chance
