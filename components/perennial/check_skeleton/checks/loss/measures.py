"""Check `metric_values`: recompute each known metric with independent code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.checks.loss.claims import describe_miscounted_bytes
from perennial.check_skeleton.checks.loss.known_metrics import (
    Floats,
    Quantities,
    answer_quantities,
    class_quantities,
    meanings_of,
    number_quantities,
)
from perennial.check_skeleton.free_outputs import output_of
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, head_of
from perennial.check_skeleton.token_outputs import is_per_token, wanted_tokens
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, WEIGHT, Batch, Task

TRIAL_ROWS = 1024
MEASURED_ROWS = 32
DISTINCT_ANSWERS = 24  # of the predictions with ties
KEPT_OF_RARE = 8
MOST_LEAN = 4.0  # beyond it, metrics differ by where they clip probabilities near 0
MADE_UP = "predictions with noise"
# Rounding, and clipping probabilities near 0, change a metric by less than a thousandth. Binned
# areas under curves (200 thresholds) are within 1 percent; other averages and axes mostly are not.
SAME = 1e-3
CLOSE = 0.02
ANSWERED = (
    "accuracy", "balanced_accuracy", "f1", "precision", "recall", "matthews_corrcoef",
    "cohen_kappa",
)  # fmt: skip
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))


@dataclass(frozen=True)
class Trial:
    """One set of predictions.

    Attributes:
        name: What is special about them.
        measured: The task's metrics.
        quantities: The same quantities by independent code.
        given: Probabilities of class 1 and the labels, if a threshold makes the predictions.
    """

    name: str
    measured: Mapping[str, float]
    quantities: Quantities
    given: tuple[Floats, Floats] | None = None


@check(
    "metric_values",
    expects=(
        "metrics of a known name equal to scikit-learn's on noisy, tied and imbalanced predictions"
    ),
    source="guides: compute the metric with independent code; scikit-learn's definitions",
    tolerance=f"{SAME:g}",
)
def check_metric_values(subject: Subject, judge: Judge) -> CheckResult:
    """Check that each metric computes what its name means, over all examples at once."""
    if subject.task.kind != "statistic" and len(np.unique(_labels(subject))) < 2:
        return judge.skipped("the training sample holds only one label")
    if bytes_counted := describe_miscounted_bytes(subject):
        return judge.failed(
            bytes_counted,
            hint="bits per byte are too low: count the bytes of the text that each token stands "
            "for, not those of another tokenizer's tokens",
        )
    return _compared(judge, subject)


def _compared(judge: Judge, subject: Subject) -> CheckResult:
    """Judge the task's metrics against independent code."""
    with made_up(MADE_UP):
        trials = _trials(subject)
    names = [name for name in subject.task.metrics if name in trials[0].measured]
    known = [name for name in names if _meanings(name, trials)]
    if not known:
        return judge.skipped(f"no reference implementation of {', '.join(subject.task.metrics)}")
    wrong = [name for name in known if not _fits(name, trials, SAME)]
    left = sorted(set(names) - set(known))
    unknown = f"; not compared: {', '.join(left)}" if left else ""
    if not wrong:
        shown = ", ".join(f"{name} {trials[0].measured[name]:.4g}" for name in known)
        return judge.passed(f"{shown} on {len(trials)} sets of predictions{unknown}")
    measured = "; ".join(_difference(name, trials) for name in wrong)
    evidence = {name: [trial.measured[name] for trial in trials] for name in wrong}
    if thresholds := {name: at for name in wrong if (at := _threshold(name, trials)) is not None}:
        name, at = next(iter(thresholds.items()))
        if len(thresholds) == len(wrong):
            return judge.warned(
                measured,
                hint=f"{name} counts probabilities from {at:g} as class 1: put that into its name, "
                "or use 0.5",
                **evidence,
            )
    if all(_fits(name, trials, CLOSE) for name in wrong):
        return judge.warned(
            measured,
            hint="close, but not exact: averaged over parts instead of all examples, or binned?",
            **evidence,
        )
    return judge.failed(measured, hint=_cause(wrong[0], trials), **evidence)


def _labels(subject: Subject) -> Floats:
    """Return labels from the whole training sample: validation may lack a rare class."""
    every = max(subject.num_rows() // TRIAL_ROWS, 1)
    labels: Floats = subject.train[LABEL][::every][:TRIAL_ROWS].double().numpy()
    return labels


def _trials(subject: Subject) -> list[Trial]:
    task = subject.task
    if task.kind == "statistic":
        return [_statistic_trial(subject)]
    labels = _labels(subject)
    generator = np.random.default_rng(subject.seed)
    if task.kind == "regression":
        # Labels may have shape [B, 1], predictions have [B].
        flat = labels.reshape(-1) if labels.size == len(labels) else labels
        return [
            Trial(name, task.score(each, labels), number_quantities(each, flat))
            for name, each in _numbers(flat, generator).items()
        ]
    width = 2
    if task.kind == "multiclass":
        width = task.predict(output_of(subject, head_of(subject.validation, 2))).shape[-1]
    noisy = _chances(labels, width, generator)
    # Few different predictions, each repeated: definitions differ in how they count ties.
    few = noisy[:DISTINCT_ANSWERS]
    far = (few**2).sum(axis=1) - 2 * noisy @ few.T  # squared distances, up to a constant per row
    kept = _thinned(labels)
    made = {
        "noisy": (noisy, labels),
        "tied": (noisy[far.argmin(axis=1)], labels),
        "imbalanced": (noisy[kept], labels[kept]),
    }
    return [_class_trial(task, name, *each) for name, each in made.items()]


def _class_trial(task: Task, name: str, chances: Floats, labels: Floats) -> Trial:
    is_binary = task.kind == "binary"
    return Trial(
        name,
        task.score(chances[:, 1].copy() if is_binary else chances, labels),
        class_quantities(chances, labels),
        (chances[:, 1], labels) if is_binary else None,
    )


def _chances(labels: Floats, width: int, generator: np.random.Generator) -> Floats:
    """Return noisy probabilities [N, C], biased towards some classes."""
    lean = np.minimum(0.4 * np.arange(width), MOST_LEAN)
    logits = generator.normal(scale=1.2, size=(len(labels), width)) - lean
    logits[np.arange(len(labels)), labels.astype(int)] += 1.5
    shares = np.exp(logits)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _numbers(labels: Floats, generator: np.random.Generator) -> dict[str, Floats]:
    scale = max(float(labels.std()), 1e-12)
    noisy = labels + scale * generator.normal(scale=0.7, size=len(labels))
    tied = labels.mean() + scale * np.round((noisy - labels.mean()) / scale)
    made = {"noisy": noisy, "tied": tied, "biased": 0.6 * noisy + 0.3 * scale}
    # Logarithms of amounts and counts are not defined below what labels can be.
    return {name: np.maximum(each, labels.min()) for name, each in made.items()}


def _thinned(labels: Floats) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
    """Return which rows to keep so that every second class is rare, but present."""
    kept = np.ones(len(labels), dtype=np.bool_)
    for code in np.unique(labels)[1::2]:
        rows = np.flatnonzero(labels == code)
        kept[rows] = np.arange(len(rows)) % KEPT_OF_RARE == 0
    return kept


def _statistic_trial(subject: Subject) -> Trial:
    """Score noisy outputs, with the task and with independent code (tokens, retrieval)."""
    task, group = subject.task, subject.task.scored_together
    rows = max(min(MEASURED_ROWS, task.scoring_rows) // group, 1) * group
    batch = head_of(subject.validation, rows)
    output = output_of(subject, batch)
    generator = torch.Generator().manual_seed(subject.seed)
    # Outputs of an untrained model are all similar; to compare definitions, they must differ.
    spread = 2.0 * max(float(output.std()), 1.0)
    output = output + spread * torch.randn(output.shape, generator=generator)
    quantities: dict[str, float] = {}
    statistics = task.statistic(output, batch).double().numpy()
    weights = batch.get(WEIGHT, torch.ones(len(batch[LABEL]))).double()
    if is_per_token(output, batch[LABEL]):
        quantities |= _token_quantities(task, output, batch, statistics)
    one_answer = "gain" not in task.statistics
    if one_answer and group > 1 and output.ndim == 3 and output.shape[1] == 2:
        quantities |= _retrieval_quantities(output, weights, group)
    return Trial("noisy", task.score(statistics, weights.numpy()), quantities)


def _token_quantities(
    task: Task, output: Tensor, batch: Batch, statistics: Floats
) -> dict[str, float]:
    """Compute quantities from the loss of every token that counts."""
    labels = wanted_tokens(task, output, batch)
    counts = (labels >= 0) & (labels < output.shape[-1])
    chances = torch.log_softmax(output.double(), dim=-1)
    losses = -chances.gather(2, labels.clamp(0, output.shape[-1] - 1).unsqueeze(2)).squeeze(2)
    mean = float(losses[counts].mean())
    right = (output.argmax(dim=-1) == labels)[counts]
    by_text = (losses * counts).sum(dim=1) / counts.sum(dim=1).clamp_min(1)
    found = {
        "perplexity": float(np.exp(mean)),
        "mean of the texts' perplexities": float(by_text.exp().mean()),
        "perplexity of the mean over texts": float(by_text.mean().exp()),
        "perplexity to the base 2": float(2.0**mean),
        "log_loss": mean,
        "accuracy of tokens": float(right.double().mean()),
    }
    if type(task).exposure is not Task.exposure:
        tokens = counts.sum(dim=1).double().numpy()
        length = float(task.exposure(statistics, tokens).sum())
        found["bits_per_byte"] = float(losses[counts].sum()) / np.log(2) / length
        found["bits_per_token"] = mean / np.log(2)
    return found


def _retrieval_quantities(output: Tensor, weights: Tensor, group: int) -> dict[str, float]:
    """Compute quantities from ranks within groups, in both directions; output [B, 2, D]."""
    ranks: dict[str, list[Tensor]] = {"texts": [], "pictures": []}
    for part in torch.split(output.double(), group):
        products = part[:, 0] @ part[:, 1].T
        for name, scores in (("texts", products), ("pictures", products.T)):
            better = scores > scores.diagonal()[:, None]
            ranks[name].append(better.sum(dim=1) + 1)
    found, share = {}, weights / weights.sum()
    both = {name: torch.cat(parts).double() for name, parts in ranks.items()}
    for k in range(1, group + 1):
        hits = {name: float(share @ (rank <= k).double()) for name, rank in both.items()}
        found[f"recall at {k}"] = sum(hits.values()) / 2
        found |= {f"recall at {k} of {name}": value for name, value in hits.items()}
    inverse = {name: float(share @ (1 / rank)) for name, rank in both.items()}
    found["mean reciprocal rank"] = sum(inverse.values()) / 2
    found |= {f"mean reciprocal rank of {name}": value for name, value in inverse.items()}
    return found


def _meanings(metric: str, trials: Sequence[Trial]) -> list[str]:
    """Return the quantities that the metric may be and that every trial has."""
    return [name for name in meanings_of(metric) if all(name in t.quantities for t in trials)]


def _fits(metric: str, trials: Sequence[Trial], tolerance: float) -> bool:
    return any(_is(metric, name, trials, tolerance) for name in _meanings(metric, trials))


def _is(metric: str, quantity: str, trials: Sequence[Trial], tolerance: float = SAME) -> bool:
    return all(
        quantity in trial.quantities
        and np.isclose(
            trial.measured[metric], trial.quantities[quantity], rtol=tolerance, atol=tolerance / 10
        )
        for trial in trials
    )


def _threshold(metric: str, trials: Sequence[Trial]) -> float | None:
    """Return the threshold for class 1 that explains the metric; None if none does."""

    def fits(trial: Trial, at: float) -> bool:
        if trial.given is None:
            return False
        chance, labels = trial.given
        found = answer_quantities((chance >= at).astype(np.int64), labels.astype(np.int64), 2)
        return _fits(metric, [Trial(trial.name, trial.measured, found)], SAME)

    kinds = {name.split(" of ")[0].split()[-1] for name in _meanings(metric, trials)}
    if kinds.isdisjoint(ANSWERED):
        return None
    return next((at for at in THRESHOLDS if all(fits(trial, at) for trial in trials)), None)


def _difference(metric: str, trials: Sequence[Trial]) -> str:
    """Describe the largest difference from the most similar quantity."""

    def gap(trial: Trial, name: str) -> float:
        return abs(trial.measured[metric] - trial.quantities[name])

    names = _meanings(metric, trials)
    nearest = min(names, key=lambda name: sum(gap(trial, name) for trial in trials))
    worst = max(trials, key=lambda trial: gap(trial, nearest))
    return (
        f"{metric} is {worst.measured[metric]:.4g} on {worst.name} predictions, expected "
        f"{worst.quantities[nearest]:.4g} ({nearest})"
    )


def _cause(metric: str, trials: Sequence[Trial]) -> str:
    # Its own kind first: the ROC area of predicted classes equals the balanced accuracy.
    for name in sorted(trials[0].quantities, key=lambda name: metric not in name):
        if _is(metric, name, trials):
            return f"{metric} computes {name}: fix score, or rename the metric"
    return (
        f"check score: is {metric} computed along the wrong axis, averaged over parts instead of "
        "all examples, for the wrong class, or from predicted classes instead of probabilities?"
    )
