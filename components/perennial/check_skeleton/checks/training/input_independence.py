"""Check `input_independent_baseline`: the model learns more from its inputs than from zeros."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor, nn

from perennial.check_skeleton.baselines import compute_control_losses
from perennial.check_skeleton.free_outputs import compute_constant_losses, training_constant
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.short_training import (
    is_trained_otherwise,
    shuffle_batches,
    simplify,
    updates,
)
from perennial.check_skeleton.subject import Subject, evaluated, is_sequence, select_head
from perennial.check_skeleton.verdict import CURVES
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.task import LABEL, WEIGHT, Batch, inputs_of

NUM_EVALUATIONS = 5
VARYING_ROWS = 1024
# Real tasks keep more than this share of the constant's loss after a hundred updates or two.
SUSPICIOUS_SHARE = 0.05
# Exchanged inputs cost a model that learned from them about twice its lead over the constant.
LEAST_RELIANCE = 2.0
# How much more clearly a linear model must see the signal before missing it is a failure.
POWER_MARGIN = 2.0
# A copy of the label leaves almost no loss, the best of many legitimate inputs more than half.
TELLING_SHARE = 0.2
MOST_COLUMNS = 2048
BINS = 64
MOST_CODES = 256

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class InputAblation:
    """Two trainings that differ only in their inputs, at the evaluation with the largest lead.

    Attributes:
        real: Mean validation loss on real inputs.
        constant: Mean validation loss of the best input-independent model.
        z_score: Mean paired lead over its standard error.
        varies: Whether different rows get different outputs.
        reliance: Standard errors by which the trained model is worse on inputs exchanged among
            rows; infinite where it no longer leads and there is nothing to explain.
        curves: Validation loss by step, with real and with zeroed inputs.
    """

    real: float
    constant: float
    z_score: float
    varies: bool
    reliance: float
    curves: JsonValue

    def __str__(self) -> str:
        return (
            f"validation loss {self.real:.4g} on real inputs, {self.constant:.4g} without: "
            f"{self.z_score:+.1f} standard errors"
        )


@check(
    "input_independent_baseline",
    expects=lambda subject: (
        f"real inputs lead by {subject.settings.significance:g} standard errors within "
        f"{subject.settings.training_steps} updates, but above {SUSPICIOUS_SHARE:.0%} of the loss "
        "without"
    ),
    source="guides: train on zeroed inputs; paired over validation rows, with a linear "
    "model as control for what the sample can show",
)
def check_input_independent_baseline(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the model learns from its inputs."""
    settings = subject.settings
    ablation = _find_best_ablation(subject)
    evidence: dict[str, JsonValue] = {
        CURVES: ablation.curves,
        "z_score": ablation.z_score,
        "exchanged_z_score": ablation.reliance,
    }
    if ablation.z_score >= settings.significance:
        if ablation.reliance < LEAST_RELIANCE:
            return judge.warned(
                f"{ablation}; with inputs exchanged among rows it is worse by only "
                f"{ablation.reliance:.1f}",
                hint="the lead does not come from the inputs: the mean of the label may drift, or "
                "weights or places in the batch may predict the label",
                **evidence,
            )
        if alone := _describe_leak(subject, ablation):
            return judge.warned(
                f"{ablation}: nearly perfect after a few updates{alone}",
                hint="possible leakage: look for the label, or a consequence of it, in the inputs",
                **evidence,
            )
        return judge.passed(str(ablation), **evidence)
    if not ablation.varies:
        return judge.failed(
            f"{ablation}; the output is the same for every row",
            hint="the inputs do not reach the output: constant encoding, dead units, detach",
            **evidence,
        )
    control = compute_control_losses(subject)
    power = z_score(control.constant - control.linear) if control else 0.0
    evidence["linear_z_score"] = power
    if power >= settings.significance + POWER_MARGIN:
        return judge.failed(
            f"{ablation}, while a linear model leads by {power:.1f}",
            hint="the inputs carry signal that the model does not learn: look at input_scale, "
            "initialisation and labels",
            **evidence,
        )
    return judge.warned(
        str(ablation),
        hint="neither the model nor a linear model finds a signal in this sample and budget: raise "
        "skeleton.sample_rows and skeleton.training_steps, or check the features",
        **evidence,
    )


def _describe_leak(subject: Subject, ablation: InputAblation) -> str:
    """Return what makes a result suspicious; empty where many inputs explain it.

    Digits, and labels that follow a rule, are learned quickly without a leak. A leak is one input.
    """
    is_perfect = 0 <= ablation.real < SUSPICIOUS_SHARE * ablation.constant
    if not is_perfect or subject.task.reconstructs_inputs:
        return ""
    if subject.task.kind == "statistic":
        return ", and there is no label to compare single inputs with"
    single = subject.once(find_best_single_input)
    if single is None or single[1] > TELLING_SHARE:
        return ""
    return f"; {single[0]} alone reduces the loss to {single[1]:.0%}"


def z_score(differences: NDArray[np.float64]) -> float:
    """Return the mean over its standard error; 0 if nothing differs or values are not finite."""
    error = float(np.std(differences, ddof=1) / np.sqrt(len(differences)))
    return float(np.mean(differences)) / error if 0 < error < np.inf else 0.0


def _find_best_ablation(subject: Subject) -> InputAblation:
    """Return the ablation at the first learning rate with a clear lead, else the best one."""
    ablations: list[InputAblation] = []
    ways = [(rate, False) for rate in subject.settings.learning_rates]
    if is_trained_otherwise(subject.task):
        ways.append((subject.settings.learning_rates[0], True))
    for rate, as_trained in ways:
        ablations.append(_run_ablation(subject, rate, as_trained=as_trained))
        if ablations[-1].z_score >= subject.settings.significance:
            return ablations[-1]
    return max(ablations, key=lambda ablation: ablation.z_score)


def _run_ablation(subject: Subject, rate: float, *, as_trained: bool) -> InputAblation:
    real = _run(subject, rate, subject.train, subject.validation, as_trained=as_trained)
    zeroed = _run_without_inputs(subject, rate)
    # The rival is the best of all: a model that only finds the label's mean faster on real inputs
    # has not learned from them.
    rivals = [*zeroed.losses.values(), _compute_constant_losses(subject)]
    rival = min(filter(_are_finite, rivals), key=np.mean)
    best = max(
        filter(_are_finite, real.losses.values()), key=lambda losses: z_score(rival - losses),
        default=rival,
    )  # fmt: skip
    still_leads = z_score(rival - real.losses[max(real.losses)]) >= subject.settings.significance
    reliance = real.reliance if still_leads else math.inf
    curves: JsonValue = {"real inputs": real.curve(), "zeroed inputs": zeroed.curve()}
    return InputAblation(
        float(best.mean()), float(rival.mean()), z_score(rival - best), real.varies,
        reliance, curves,
    )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """Validation losses, shape [N], by step of a training, and the effect of its inputs."""

    losses: dict[int, NDArray[np.float64]]
    varies: bool
    reliance: float

    def curve(self) -> JsonValue:
        points = ((step, losses) for step, losses in self.losses.items() if _are_finite(losses))
        return [[float(step), float(losses.mean())] for step, losses in points]


def _run(
    subject: Subject, rate: float, train: Batch, validation: Batch, *, as_trained: bool = False
) -> _Run:
    settings, model = subject.settings, simplify(subject.build_model())
    every = max(settings.training_steps // NUM_EVALUATIONS, 1)
    batches = shuffle_batches(subject, train, settings.training_steps)
    updated = updates(subject.task, model, batches, rate, as_trained=as_trained)
    losses = {}
    for step, _ in enumerate(updated, start=1):
        if step % every == 0 or step == settings.training_steps:
            losses[step] = _compute_losses(subject, model, validation)
            simplify(model)
    with torch.no_grad():
        rows = min(VARYING_ROWS, subject.task.scoring_rows)
        output = evaluated(model)(**inputs_of(select_head(validation, rows)))
    varies = not torch.allclose(output, output[:1].expand_as(output))
    reliance = 0.0
    if varies:
        try:
            cost = (
                _compute_losses(subject, model, _exchange_inputs(validation)) - losses[max(losses)]
            )
            reliance = z_score(cost)
        except Exception:  # for instance, one row's tokens with another's lengths
            reliance = math.inf
    return _Run(losses, varies, reliance)


def _run_without_inputs(subject: Subject, rate: float) -> "_Run":
    """Train on uninformative inputs: zeros, or where those are rejected the inputs of one row."""
    for made in (_zero_inputs, _repeat_inputs):
        try:
            return _run(subject, rate, made(subject.train), made(subject.validation))
        except Exception:  # for instance, sequences of length zero cannot be packed
            logging.getLogger(__name__).info("the task rejects inputs made by %s", made.__name__)
    return _Run({}, varies=False, reliance=0.0)


def _repeat_inputs(batch: Batch) -> Batch:
    return {
        name: tensor if name in (LABEL, WEIGHT) else tensor[:1].expand_as(tensor).clone()
        for name, tensor in batch.items()
    }


def _compute_losses(subject: Subject, model: nn.Module, batch: Batch) -> NDArray[np.float64]:
    """Return the loss of each example, shape [N]."""
    return score_in_parts(subject.task, model, batch).losses


def _compute_constant_losses(subject: Subject) -> NDArray[np.float64]:
    """Return validation losses, shape [N], of the training sample's best constant output."""
    constant, _ = training_constant(subject)
    return compute_constant_losses(subject.task, constant, subject.validation).double().numpy()


def _zero_inputs(batch: Batch) -> Batch:
    return {
        name: tensor if name in (LABEL, WEIGHT) else torch.zeros_like(tensor)
        for name, tensor in batch.items()
    }


def _exchange_inputs(batch: Batch) -> Batch:
    """Return a batch with each input from another, distant row: neighbours may be alike."""
    half = len(batch[LABEL]) // 2
    moves = {name: half + number for number, name in enumerate(inputs_of(batch))}
    return {name: tensor.roll(moves.get(name, 0), 0) for name, tensor in batch.items()}


def _are_finite(losses: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(losses).all())


def find_best_single_input(subject: Subject) -> tuple[str, float] | None:
    """Return the most predictive input, and the share of the best constant's loss that is left.

    By the label's mean or class shares within each of its values, or of its 64 quantiles. None
    where there are no labels to predict, or no second input.
    """
    if subject.task.kind == "statistic":
        return None
    train, validation = subject.train, subject.validation
    labels, others = (each[LABEL].double().numpy() for each in (train, validation))
    is_number = subject.task.kind == "regression"
    measure = _measure_left_of_numbers if is_number else _measure_left_of_classes
    pairs = list(zip(_list_columns(train, train), _list_columns(train, validation), strict=True))
    if len(pairs) < 2:
        return None
    shares = {}
    for (name, column), (_, other) in pairs:
        codes, others_codes = _bin_columns(column, other)
        shares[name] = measure((codes, labels), (others_codes, others))
    best = min(shares, key=lambda name: shares[name])
    return best, shares[best]


def _list_columns(reference: Batch, batch: Batch) -> Iterator[tuple[str, Floats]]:
    """Yield columns of tables and pictures; for sequences, whether each frequent code occurs."""
    for name, tensor in inputs_of(batch).items():
        if is_sequence(name, reference):
            for code in _find_frequent(reference[name]):
                yield f"{name} contains {code}", (tensor == code).any(dim=1).double().numpy()
            continue
        flat = tensor.reshape(len(tensor), -1).double()
        step = max(1, flat.shape[1] // MOST_COLUMNS)
        for index in range(0, flat.shape[1], step):
            yield f"{name}[{index}]", flat[:, index].numpy()


def _find_frequent(tokens: Tensor) -> list[int]:
    codes, counts = torch.unique(tokens, return_counts=True)
    chosen = codes[counts.argsort(descending=True)[:MOST_CODES]]
    return [int(code) for code in chosen]


def _bin_columns(column: Floats, other: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    edges = np.unique(column)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1]))
    first, second = (np.searchsorted(edges, each) for each in (column, other))
    return first.astype(np.int64), second.astype(np.int64)


def _measure_left_of_numbers(
    train: tuple[NDArray[np.int64], Floats], test: tuple[NDArray[np.int64], Floats]
) -> float:
    (codes, labels), (others, truth) = train, test
    size = int(max(codes.max(), others.max())) + 1
    mean = labels.mean()
    sums, counts = np.bincount(codes, labels, size), np.bincount(codes, minlength=size)
    means = (sums + mean * 0.1) / (counts + 0.1)
    return float(np.mean((means[others] - truth) ** 2) / max(np.mean((mean - truth) ** 2), 1e-12))


def _measure_left_of_classes(
    train: tuple[NDArray[np.int64], Floats], test: tuple[NDArray[np.int64], Floats]
) -> float:
    (codes, labels), (others, truth) = train, test
    size = int(max(codes.max(), others.max())) + 1
    classes = int(max(labels.max(), truth.max())) + 1
    counts = np.zeros((size, classes))
    np.add.at(counts, (codes, labels.astype(int)), 1)
    shares = (counts.sum(axis=0) + 0.1) / (len(labels) + 0.1 * classes)
    chances = (counts + 0.1 * shares) / (counts.sum(axis=1, keepdims=True) + 0.1)
    right = truth.astype(int)
    loss, most = -np.log(chances[others, right]).mean(), -np.log(shares[right]).mean()
    return float(loss / max(most, 1e-12))
