"""Check `output_form`: outputs fit the labels, and can bring the loss near zero."""

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.nn import functional

from perennial.check_skeleton.free_outputs import (
    DOMAIN_ROWS,
    choose_domain,
    compute_output,
    find_best_outputs,
    find_free_outputs,
    find_output_domain,
    has_row_per_label,
    is_per_token,
    probe,
    push_outputs,
)
from perennial.check_skeleton.minimum import ROUNDING
from perennial.check_skeleton.models import build_noisy_model, measure_loss, run_model
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Floats, Subject, select_head, select_rows
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, WEIGHT, Batch, Task

# As in `loss_floor`: a second softmax or sigmoid leaves 45 to 75 % of the constant's loss, label
# smoothing of 0.1 leaves 15 to 29 %, and less than 5 % does no harm.
FAILING_SHARE = 0.4
DOUBTFUL_SHARE = 0.05
# With smoothed labels, the loss is minimal at less extreme outputs.
SOFTNESS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.2)
LARGE_LOGIT = 30.0  # the rest then has 1e-13 of the probability
# A class of which ten examples were expected and none occurred is hardly in the data.
SURELY_SEEN = 10
# Share of the improvement from start to minimum; with ties at their expected rank, near 0.
FLATTERED_SHARE = 0.9


@dataclass(frozen=True)
class Bounds:
    """Bounds of a model's outputs."""

    name: str  # A description
    hint: str  # the likely cause and the fix
    lowest: float  # the lower bound
    highest: float  # the upper bound
    sums_to_one: bool = False  # whether an example's outputs sum to 1

    def hold(self, outputs: Tensor) -> bool:
        """Whether these outputs are within the bounds."""
        least, most = self.lowest - ROUNDING, self.highest + ROUNDING
        is_within = bool(((outputs >= least) & (outputs <= most)).all())
        if not is_within or not self.sums_to_one:
            return is_within
        sums = outputs.sum(dim=-1)
        is_spread = outputs.ndim > 1 and outputs.shape[-1] > 1
        return is_spread and torch.allclose(sums, torch.ones_like(sums), atol=ROUNDING)


# From the narrowest to the widest.
BOUNDS = (
    Bounds(
        "probabilities that sum to one",
        "the model ends in a softmax and the loss applies another: return logits, and apply the "
        "softmax in the loss and in predict",
        0.0,
        1.0,
        sums_to_one=True,
    ),
    Bounds(
        "within 0 and 1",
        "the model ends in a sigmoid; a loss with logits applies another, and targets outside 0 to "
        "1 are out of reach: return the last layer's output without it",
        0.0,
        1.0,
    ),
    Bounds(
        "within -1 and 1",
        "the model ends in tanh, or normalises its output, which is too narrow for logits and for "
        "targets outside -1 to 1: return the last layer's output without it",
        -1.0,
        1.0,
    ),
    Bounds(
        "0 or more",
        "the model ends in a ReLU or similar: targets below zero are out of reach, and outputs cut "
        "to zero get no gradient. Return the last layer's output without it",
        0.0,
        torch.inf,
    ),
)


@check(
    "output_form",
    expects="an output for every class of the labels, and outputs that can bring the loss near "
    f"zero; a failure if their bounds leave {FAILING_SHARE:.0%} of the best constant's loss",
    source="guides: cross-entropy takes logits, softmax before it is a silent failure; "
    "thresholds from the formulas of softmax and sigmoid applied twice",
    needs_losses=False,
)
def check_output_form(subject: Subject, judge: Judge) -> CheckResult:
    """Check that outputs fit the loss: enough for the labels, without an extra activation."""
    batch = select_head(probe(subject), max(DOMAIN_ROWS, subject.task.scored_together))
    output = compute_output(subject, batch)
    if not isinstance(output, Tensor) or output.shape[:1] != (len(batch[LABEL]),):
        return judge.skipped(
            "the model does not return one row per example: see per_example_losses"
        )
    if not bool(torch.isfinite(output).all()):
        return judge.skipped("the output is not finite: see activations")
    if subject.task.scored_together > 1:
        return _judge_pairs(judge, subject, batch, output)
    if narrow := _describe_missing_outputs(subject, output):
        return judge.failed(
            narrow,
            hint="the last layer has too few outputs for the classes or tokens that occur: count "
            "them in fit(train), and size the layer by that count",
        )
    return _judge_bounds(judge, subject, batch, output) or _judge_width(judge, subject, output)


def _judge_bounds(
    judge: Judge, subject: Subject, batch: Batch, output: Tensor
) -> CheckResult | None:
    """Judge an activation after the last layer; None if there is none."""
    pushed = push_outputs(subject, batch)
    found = (each for each in BOUNDS if pushed and each.hold(torch.cat(pushed)))
    bounds = next(found, None)
    if bounds is None:
        return None
    targets = _make_targets(subject, output, batch)
    if targets is None:
        share, shown, is_doubtful = *_measure_regression_share(subject, bounds, output, batch), True
    else:
        share, shown = _measure_classes_share(subject, bounds, targets, output, batch)
        is_doubtful = False  # the floor of label smoothing is not the model's fault
    measured = f"outputs are always {bounds.name}, where the loss is at least {shown} ({share:.0%})"
    if share > FAILING_SHARE:
        return judge.failed(measured, hint=bounds.hint, share=share)
    if share > DOUBTFUL_SHARE and is_doubtful:
        return judge.warned(measured, hint=bounds.hint, share=share)
    return judge.passed(f"outputs are always {bounds.name}, as the loss expects")


def _make_targets(subject: Subject, output: Tensor, batch: Batch) -> Tensor | None:
    """Return one-hot targets for outputs that are classes; None for other outputs."""
    labels = batch[LABEL]
    if is_per_token(output, labels):
        return functional.one_hot(labels.long().clamp_min(0), output.shape[-1]).to(output.dtype)
    if subject.task.kind == "binary" and output[0].numel() == 1:
        return labels.reshape(output.shape).to(output.dtype)
    is_classes = subject.task.kind in ("binary", "multiclass") and output.ndim == 2
    if not is_classes or int(labels.max()) >= output.shape[1]:
        return None
    return functional.one_hot(labels.long(), output.shape[1]).to(output.dtype)


def _measure_classes_share(
    subject: Subject, bounds: Bounds, targets: Tensor, output: Tensor, batch: Batch
) -> tuple[float, str]:
    """Return the least loss within the bounds over the untrained model's, and a description.

    A single output may also be a distance, which is small for label 1.
    """
    middle = 1 / targets.shape[-1] if bounds.sums_to_one else 0.5
    width = min(bounds.highest, LARGE_LOGIT) - bounds.lowest
    at_start = measure_loss(subject.task.losses, output, batch)
    ways = (targets, 1 - targets) if output[0].numel() == 1 else (targets,)
    best = min(
        measure_loss(subject.task.losses, bounds.lowest + width * each, batch)
        for way in ways
        for each in (way * (1 - softness) + middle * softness for softness in SOFTNESS)
    )
    return best / max(at_start, 1e-12), f"{best:.4g} of {at_start:.4g}"


def _measure_regression_share(
    subject: Subject, bounds: Bounds, output: Tensor, batch: Batch
) -> tuple[float, str]:
    """Return the share of the possible improvement that bounds prevent, and a description."""
    free = find_free_outputs(subject, output, batch)
    within = free.ideal.clamp(bounds.lowest, bounds.highest)
    best = measure_loss(subject.task.losses, within, batch)
    room = free.constant_loss - free.floor
    if not room > 0 or not math.isfinite(best):
        return 0.0, ""  # as where the loss takes logarithms of outputs: `loss_floor` judges those
    return (best - free.floor) / room, f"{best:.4g} of {free.constant_loss:.4g}"


def _judge_width(judge: Judge, subject: Subject, output: Tensor) -> CheckResult:
    """Judge outputs that are not needed."""
    if unused := _find_unused_columns(subject, output):
        return judge.warned(
            f"{len(unused)} of {output.shape[1]} outputs never enter the loss: {unused[:8]}",
            hint="the last layer has too many outputs, or the loss uses the wrong ones",
        )
    extra = _find_classes_without_labels(subject, output)
    if extra and (merged := _find_merged_values(subject, output.shape[1])):
        return judge.failed(
            f"{output.shape[1]} outputs for as many values of the label column, but {merged} have "
            f"one code, and no label is {extra[:8]}",
            hint="labels that begin at 0 are shifted as if they began at 1, clipped, or looked up "
            "by a missing name: give each value its own code, or, if the classes are "
            "merged on purpose, give the model fewer outputs",
        )
    if extra:
        return judge.warned(
            f"{output.shape[1]} outputs, and no label among {subject.num_rows()} is {extra[:8]}",
            hint="the last layer has too many outputs: count the classes in fit(train). Or are "
            "these so rare that the sample has none? Then raise skeleton.sample_rows",
        )
    shape = ", ".join(["B", *map(str, output.shape[1:])])
    return judge.passed(f"shape [{shape}], free to take any value")


def _describe_missing_outputs(subject: Subject, output: Tensor) -> str:
    """Describe labels without an output; empty if there are none."""
    task, labels = subject.task, subject.train[LABEL]
    per_token = has_row_per_label(output, labels[: len(output)]) and not labels.is_floating_point()
    if task.kind != "multiclass" and not per_token:
        return ""
    largest = max(int(labels.max()), int(subject.validation[LABEL].max()))
    # Ordinal models have one output fewer than classes, so predictions are counted.
    width = output.shape[-1] if per_token else task.predict(output).shape[-1]
    if largest < width:
        return ""
    if per_token:
        # Forecasts with a row of quantiles for each number have a loss that takes any label.
        large = (labels == labels.max()).flatten(1).any(dim=1).nonzero().flatten()[:1]
        with suppress(IndexError, RuntimeError):  # as cross-entropy raises
            found = task.losses(output[:1], select_rows(subject.train, large))
            if bool(torch.isfinite(found).all()):
                return ""
    return f"labels go up to {largest}, the {width} outputs to {width - 1}"


def _find_unused_columns(subject: Subject, output: Tensor) -> list[int]:
    """Return columns of outputs [B, O] that get no gradient from any example.

    Without those that the weights do not reach: `predict` or a comparison in the loss needs them.
    """
    if output.ndim != 2:
        return []
    task, batch = subject.task, select_head(probe(subject), len(output))
    domain = choose_domain(subject)
    is_free = domain.kind in ("free", "held")
    free = (output + is_free * 0.1 * torch.randn_like(output)).requires_grad_()
    # The logarithm of a class that no label has counts by the sum that it enters.
    made = domain.outputs(free) if domain.kind == "log_probabilities" else free
    # A separate head may be used only by the training loss.
    total = task.losses(made, batch).sum() + task.training_losses(made, batch).sum()
    (gradient,) = torch.autograd.grad(total, free)
    is_unused = ~(gradient != 0).any(dim=0) & ~domain.held
    return is_unused.nonzero().flatten().tolist()


def _find_classes_without_labels(subject: Subject, output: Tensor) -> list[int]:
    """Return classes that the model considers likely but that no sampled label has."""
    if subject.task.kind != "multiclass" or output.ndim != 2:
        return []
    predicted = subject.task.predict(output)
    if predicted.shape != output.shape or not predicted.is_floating_point():
        return []
    labels = torch.cat([subject.train[LABEL], subject.validation[LABEL]]).long().clamp_min(0)
    expected = predicted.mean(dim=0) * len(labels)
    counts = torch.bincount(labels, minlength=len(expected))
    # Where some classes were seen once, others are likely to have been missed.
    if bool((counts == 1).any()):
        return []
    return ((counts == 0) & (expected > SURELY_SEEN)).nonzero().flatten().tolist()


def _find_merged_values(subject: Subject, width: int) -> list[object]:
    """Return values of the label column that share a code although each has an output."""
    raw, codes = subject.train_rows[subject.task.columns.label], subject.train[LABEL]
    if raw.dtype.is_nested() or raw.n_unique() != width or codes.ndim != 1:
        return []
    pairs = pl.DataFrame({"raw": raw, "code": codes.numpy()}).unique().sort("code", "raw")
    if pairs.height != width:
        return []
    shared = pairs.filter(pl.col("code").is_duplicated())
    return shared.filter(pl.col("code") == shared["code"].first())["raw"].to_list()


def _judge_pairs(judge: Judge, subject: Subject, batch: Batch, output: Tensor) -> CheckResult:
    """Judge whether pairs of directions [B, 2, D] are scaled enough to be distinguished."""
    group = subject.task.scored_together
    rows, width = len(output), output.shape[-1]
    if output.ndim != 3 or output.shape[1] != 2 or width < group or rows % group:
        return judge.skipped("the task compares examples, but its outputs are not pairs of vectors")
    lengths = output.norm(dim=2, keepdim=True)
    stirred = run_model(build_noisy_model(subject), batch).norm(dim=2, keepdim=True)
    spreads = ((e.amax(dim=0) - e.amin(dim=0)) / e.mean(dim=0) for e in (lengths, stirred))
    if not all(float(each.max()) < ROUNDING for each in spreads):
        return judge.passed(f"pairs of vectors of {width} numbers, of any length")
    # Every pair on its own axis: nearly as far apart as directions can be.
    axes = torch.eye(width, dtype=output.dtype)[torch.arange(rows) % group]
    apart = axes[:, None, :] * lengths
    together = torch.ones_like(output) / width**0.5 * lengths
    best, alike = (float(subject.task.losses(each, batch).mean()) for each in (apart, together))
    shown = f"the loss is {best:.4g} for orthogonal pairs and {alike:.4g} for equal pairs"
    if best > FAILING_SHARE * alike:
        return judge.failed(
            shown,
            hint="directions of length 1 give products within -1 and 1, too small for a softmax: "
            "multiply them by a learned scale, 1 / 0.07 at the start",
        )
    return judge.passed(shown)


def find_flattered_statistic(
    subject: Subject, best: dict[str, float], start: dict[str, float]
) -> str:
    """Describe a `statistic` task's metric that scores constant outputs as good; empty if none.

    `best` are the metrics at the loss's minimum, `start` those of the untrained model.
    """
    task, batch = subject.task, probe(subject)
    is_ranked = task.scored_together > 1
    if not is_ranked and len(np.unique(batch[LABEL].numpy())) < 2:
        return ""  # one prediction is right for all
    if not find_best_outputs(subject).is_bound:
        return ""
    weights = batch[WEIGHT].double().numpy() if WEIGHT in batch else np.ones(len(batch[LABEL]))
    found: list[dict[str, float]] = []
    try:
        # Ones and a unit vector: their products and distances are exact.
        output = compute_output(subject, batch)
        ones, unit = torch.ones_like(output), torch.zeros_like(output)
        unit[..., 0] = 1.0
        pair = (ones, unit) if is_ranked else (ones, -ones)
        for constant in (ones,) if is_per_token(output, batch[LABEL]) else pair:
            domain = find_output_domain(subject)
            outputs = torch.where(domain.held, output, domain.outputs(constant))
            statistics = task.statistic(outputs, batch).double().numpy()
            found.append(task.score(statistics, weights))
    except Exception:  # a task may reject outputs that its model cannot give
        return ""
    for name, value in best.items():
        sign = measure_gain(task, name, 1.0, 0.0)
        values = [sign * each[name] for each in found if np.isfinite(each[name])]
        # One constant is perfect by recall, the opposite one is not; ties flatter both.
        most = (max if is_ranked else min)(values, default=-np.inf)
        is_perfect = most >= sign * value - 1e-9 * abs(value)
        way, begun = sign * (value - start[name]), sign * start[name]
        if is_perfect or (is_ranked and most - begun > FLATTERED_SHARE * way):
            shown = f"{name} is {sign * most:.4g} for constant outputs"
            return f"{shown}, and {value:.4g} at the loss's minimum"
    return ""


def measure_gain(task: Task, metric: str, value: float, other: float) -> float:
    """Return by how much a metric's value is better than another one."""
    return value - other if task.metrics[metric] == "maximize" else other - value


def find_flattered_metric(
    subject: Subject, labels: Floats, perfect: Floats, scores: dict[str, float]
) -> str:
    """Describe a metric that scores every constant prediction as perfect; empty if none.

    A single constant may well be perfect: the mean by the bias, the prior by calibration. `perfect`
    are the labels [N] as predictions, with their scores.
    """
    task, flattered, every = subject.task, set(scores), np.ones(len(labels), dtype=np.bool_)
    values = [0.2, 0.5, 0.8]
    if task.kind == "regression":
        values = [float(labels.mean() + by * labels.std()) for by in (-0.5, 0.0, 1.0)]
    constants = [(value, every) for value in values]
    if task.kind == "multiclass":
        # Also without the first class, which argmax predicts if all are equal.
        constants = [(1 / perfect.shape[1], rows) for rows in (every, labels != 0)]
    try:
        for value, kept in constants:
            constant = np.full_like(perfect, value)
            right = scores if kept.all() else task.score(perfect[kept], labels[kept])
            found = task.score(constant[kept], labels[kept])
            flattered &= {
                name
                for name in found.keys() & right.keys()
                if measure_gain(task, name, found[name], right[name]) >= 0
            }
    except Exception:  # a score may require many different predictions
        return ""
    if not flattered:
        return ""
    name = min(flattered)
    shown = f"{name} is {scores[name]:.4g} for perfect predictions"
    return f"{shown}, and no worse for any constant prediction"
