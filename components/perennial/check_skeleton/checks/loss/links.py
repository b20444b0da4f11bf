"""Check `prediction_detail`: predictions keep the outputs' detail, as the loss defines it."""

import math

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import best_outputs, output_of, probe
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, Batch

# Outputs of one number run from -4 to 4, where probabilities run from 2 to 98 %.
WIDEST = 4.0
# Of 256 different outputs: two decimals leave 100 values, clipping at 10 % makes half equal.
KEPT_SHARE = 0.5
APART = 0.05
MOST_ALIKE = 0.2
# Ratio of the log odds that `predict` gives to those at which the loss balances: 1 for likelihoods,
# with or without class weights; 2 for tanh in place of a sigmoid.
LEAST_RATIO, LARGEST_RATIO = 0.6, 1.6
CLEAR_ODDS = (0.1, 0.9)
MOST_CLASSES = 32
FEWEST_PROBES = 20
SAME_LOSS = 0.01


@check(
    "prediction_detail",
    expects=(
        "different predictions for different outputs, each from its own output, and "
        "probabilities at which the expected gradient of the loss is zero"
    ),
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
        outputs = _different_outputs(subject, batch)
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
    return _judge_detail(judge, subject, predicted) or _judge_odds(
        judge, subject, outputs, predicted, batch
    )


def _different_outputs(subject: Subject, batch: Batch) -> Tensor:
    """Return as many outputs as examples, all different and none extreme."""
    template = output_of(subject, batch)
    if subject.task.kind == "regression":
        ideal = best_outputs(subject).ideal.reshape(len(template), -1)
        places = torch.linspace(0.02, 0.98, len(template), dtype=ideal.dtype)
        spread = torch.quantile(ideal, places, dim=0)
        # Labels that repeat, such as star ratings, would make outputs equal.
        apart = APART * places[:, None] * (spread[-1] - spread[0])
        return (spread + apart).reshape(template.shape)
    if template[0].numel() == 1:
        return torch.linspace(-WIDEST, WIDEST, len(template)).reshape(template.shape)
    generator = torch.Generator().manual_seed(subject.seed)
    return 2 * torch.randn(template.shape, generator=generator)


def _judge_detail(judge: Judge, subject: Subject, predicted: Tensor) -> CheckResult | None:
    """Judge predictions that are equal although outputs differ; None if enough differ."""
    rows = predicted.flatten(1).numpy() if predicted.ndim > 1 else predicted.numpy()[:, None]
    wanted = len(rows)
    if subject.task.kind == "regression":
        labels = subject.train[LABEL].double().numpy()
        # Counts may well be rounded, and the label's own repeats are not a loss of detail.
        is_whole = bool((labels == np.round(labels)).all())
        wanted = min(wanted, len(np.unique(labels))) if is_whole else wanted
        _, times = np.unique(rows[:, 0], return_counts=True)
        own = np.unique(labels, return_counts=True)[1].max() / len(labels)
    else:
        _, times = np.unique(rows, axis=0, return_counts=True)
        own = 0.0
    alike = float(times.max()) / len(rows)
    shown = f"{len(rows)} different outputs became {len(times)} different predictions"
    if len(times) >= KEPT_SHARE * wanted and alike <= MOST_ALIKE + own:
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
    kept = judge.passed(f"{len(outputs)} different outputs give as many different predictions")
    if subject.task.kind == "regression" or outputs.ndim > 2:
        return kept
    balanced = _balanced_probabilities(subject, outputs, batch)
    if balanced is None:
        return kept
    given = predicted if predicted.ndim == 2 else torch.stack([1 - predicted, predicted], dim=1)
    ratio = _ratio_of_odds(given.double(), balanced)
    if ratio is None:
        return kept
    shown = f"the predictions' log odds are {ratio:.3g} times those that the loss implies"
    if LEAST_RATIO <= ratio <= LARGEST_RATIO:
        return judge.passed(shown, ratio=round(ratio, 4))
    return judge.failed(
        shown,
        hint="predict and losses use different functions of the output: a temperature or a scale "
        "in one of them only, tanh for sigmoid, sigmoid twice",
        ratio=round(ratio, 4),
    )


def _balanced_probabilities(subject: Subject, outputs: Tensor, batch: Batch) -> Tensor | None:
    """Return label probabilities [B, C] for which each output is optimal; None if unknown.

    For these, the gradients for the labels, weighted by their probabilities, add up to zero.
    """
    labels, is_binary = batch[LABEL], subject.task.kind == "binary"
    classes = 2 if is_binary else int(outputs.shape[1])
    if classes > MOST_CLASSES or (not is_binary and int(labels.max()) >= classes):
        return None
    gradients, costs = [], []
    try:
        for code in range(classes):
            free = outputs.clone().requires_grad_()
            losses = subject.task.losses(free, {**batch, LABEL: torch.full_like(labels, code)})
            (gradient,) = torch.autograd.grad(losses.sum(), free)
            gradients.append(gradient.double().reshape(len(gradient), -1))
            costs.append(losses.detach().double())
    except Exception:  # a loss may get its labels elsewhere, or accept probabilities only
        return None
    each, cost = torch.stack(gradients, dim=1), torch.stack(costs, dim=1)  # [B, C, D], [B, C]
    if not bool(torch.isfinite(each).all()) or not bool(each.any()):
        return None
    products = each @ each.transpose(1, 2)
    ridge = 1e-9 * products.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    found = torch.linalg.solve(
        products + (ridge + 1e-30) * torch.eye(classes), torch.ones(len(each), classes).double()
    )
    balanced = found / found.sum(dim=1, keepdim=True)
    # Focal losses, margins, smoothed labels and class weights are not likelihoods, by design.
    likelihood = -balanced.clamp_min(1e-12).log()
    is_likelihood = (likelihood - cost).abs() <= SAME_LOSS * (1 + cost.abs())
    return balanced if float(is_likelihood.double().mean()) > 0.95 else None


def _ratio_of_odds(given: Tensor, balanced: Tensor) -> float | None:
    """Return the slope between log odds of pairs of classes; None if too few are clear."""
    least, most = CLEAR_ODDS
    pairs = []
    for first in range(balanced.shape[1] - 1):
        two, predicted = balanced[:, first : first + 2], given[:, first : first + 2]
        share = two[:, 1] / two.sum(dim=1)
        is_inner = (share > least) & (share < most)
        is_clear = is_inner & (two > 0).all(dim=1) & (predicted > 0).all(dim=1)
        if int(is_clear.sum()) >= FEWEST_PROBES:
            odds = [each[is_clear, 1].log() - each[is_clear, 0].log() for each in (two, predicted)]
            # A constant moves the odds of a pair where classes are weighted.
            pairs.append(torch.stack([each - each.mean() for each in odds]))
    if not pairs:
        return None
    x, y = torch.cat(pairs, dim=1)
    slope = float((x * y).sum() / x.square().sum().clamp_min(1e-12))
    return slope if math.isfinite(slope) else None
