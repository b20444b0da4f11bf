"""Check `metric_values`: metrics agree with scikit-learn or with their definition.

Some names have several valid meanings: F1 of the second class, or the mean over classes. A metric
is correct if one of them matches on every set of predictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import polars as pl
import torch
from sklearn import metrics
from torch import Tensor

from perennial.check_skeleton.checks.loss.cut_fractions import describe_cut_fraction
from perennial.check_skeleton.checks.loss.undetermined import describe_undetermined_metrics
from perennial.check_skeleton.checks.loss.units import find_unit
from perennial.check_skeleton.free_outputs import compute_output, find_wanted_tokens, is_per_token
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Codes, Flags, Floats, Subject, select_head
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import take_one_each
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
COUNTED_ROWS = 32
FEWEST_CHARACTERS = 8
# Escapes and other normal forms sometimes turn one byte into two.
MOST_BYTES = 1.5
ANSWERED = (
    "accuracy",
    "balanced_accuracy",
    "f1",
    "precision",
    "recall",
    "matthews_corrcoef",
    "cohen_kappa",
)
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))
Quantities = Mapping[str, float]
"""Quantity → its value."""

AVERAGES = ("macro", "weighted", "micro")
_THRESHOLDED = {
    "f1": metrics.f1_score,
    "precision": metrics.precision_score,
    "recall": metrics.recall_score,
}
_AREAS = {"roc_auc": metrics.roc_auc_score, "average_precision": metrics.average_precision_score}
_TOP = (2, 3, 5, 10)

_MEANINGS: dict[str, tuple[str, ...]] = {
    "roc_auc": ("roc_auc of class 1", "macro roc_auc", "weighted roc_auc", "one-vs-one roc_auc"),
    "average_precision": (
        "average_precision of class 1",
        "macro average_precision",
        "weighted average_precision",
    ),
    "pr_auc": (
        "average_precision of class 1",
        "macro average_precision",
        "weighted average_precision",
        "area under precision and recall",
    ),
    "brier": ("brier", "brier of class 1", "brier per class"),
    "accuracy": ("accuracy", "accuracy of tokens"),
    "pearson": ("pearson",),
    **{
        name: (
            f"{name} of class 1",
            *(f"{average} {name}" for average in AVERAGES),
            *(f"{average} {name} of all classes" for average in AVERAGES),
        )
        for name in _THRESHOLDED
    },
    **{
        f"{average}_{name}": (f"{average} {name}", f"{average} {name} of all classes")
        for name in _THRESHOLDED
        for average in AVERAGES
    },
    **{f"{average}_roc_auc": (f"{average} roc_auc",) for average in ("macro", "weighted")},
    **{f"top_{k}_accuracy": (f"accuracy in the first {k}",) for k in _TOP},
    "mean_reciprocal_rank": (
        "mean reciprocal rank",
        "mean reciprocal rank of texts",
        "mean reciprocal rank of pictures",
    ),
}
_ALIASES = {
    "auc": "roc_auc",
    "auroc": "roc_auc",
    "rocauc": "roc_auc",
    "acc": "accuracy",
    "logloss": "log_loss",
    "cross_entropy": "log_loss",
    "nll": "log_loss",
    "ap": "average_precision",
    "auprc": "pr_auc",
    "auc_pr": "pr_auc",
    "prauc": "pr_auc",
    "brier_score": "brier",
    "brier_loss": "brier",
    "f1_score": "f1",
    "mcc": "matthews_corrcoef",
    "kappa": "cohen_kappa",
    "mean_squared_error": "mse",
    "mean_absolute_error": "mae",
    "root_mean_squared_error": "rmse",
    "r2_score": "r2",
    "r_squared": "r2",
    "mrr": "mean_reciprocal_rank",
    "ppl": "perplexity",
    "token_accuracy": "accuracy",
    "pearson_r": "pearson",
    "pearsonr": "pearson",
}


@dataclass(frozen=True)
class PredictionSet:
    """One set of predictions."""

    name: str  # what is special about them
    measured: Mapping[str, float]  # the task's metrics
    quantities: Quantities  # the same quantities by independent code
    # Probabilities of class 1 and the labels, if a threshold makes the predictions.
    given: tuple[Floats, Floats] | None = None


@check(
    "metric_values",
    expects="metrics of a known name equal to scikit-learn's on noisy, tied and imbalanced "
    "predictions",
    source="guides: compute the metric with independent code; scikit-learn's definitions",
    tolerance=f"{SAME:g}",
)
def check_metric_values(subject: Subject, judge: Judge) -> CheckResult:
    """Check that each metric computes what its name means, over all examples at once."""
    if subject.task.kind != "statistic" and len(np.unique(_sample_labels(subject))) < 2:
        return judge.skipped("the training sample holds only one label")
    if bytes_counted := _describe_miscounted_bytes(subject):
        return judge.failed(
            bytes_counted,
            hint="bits per byte are too low: count the bytes of the text that each token stands "
            "for, not those of another tokenizer's tokens",
        )
    with made_up(MADE_UP):
        undetermined = describe_undetermined_metrics(subject)
    if cut := describe_cut_fraction(subject, _sample_labels(subject)):
        return judge.failed(
            cut,
            hint="fractions are cut, as by int() or floor: round to the nearest whole number, as "
            "np.rint does",
        )
    if undetermined:
        return judge.failed(
            undetermined,
            hint="training decides only differences of an example's outputs: a softmax makes them "
            "compete. Where several may be true, use one sigmoid each, in the loss, too",
        )
    return _judge_metrics(judge, subject)


def _judge_metrics(judge: Judge, subject: Subject) -> CheckResult:
    """Judge the task's metrics against independent code."""
    with made_up(MADE_UP):
        trials = _make_trials(subject)
    names = [name for name in subject.task.metrics if name in trials[0].measured]
    known = [name for name in names if _list_meanings(name, trials)]
    if not known:
        return judge.skipped(f"no reference implementation of {', '.join(subject.task.metrics)}")
    wrong = [name for name in known if not _is_fitting(name, trials, SAME)]
    left = sorted(set(names) - set(known))
    unknown = f"; not compared: {', '.join(left)}" if left else ""
    if not wrong:
        shown = ", ".join(f"{name} {trials[0].measured[name]:.4g}" for name in known)
        return judge.passed(f"{shown} on {len(trials)} sets of predictions{unknown}")
    measured = "; ".join(_describe_difference(name, trials) for name in wrong)
    evidence = {name: [trial.measured[name] for trial in trials] for name in wrong}
    thresholds = [_find_threshold(name, trials) for name in wrong]
    if None not in thresholds:
        return judge.warned(
            measured,
            hint=f"{wrong[0]} counts probabilities from {thresholds[0]:g} as class 1: put that "
            "into its name, or use 0.5",
            **evidence,
        )
    if all(_is_fitting(name, trials, CLOSE) for name in wrong):
        return judge.warned(
            measured,
            hint="close, but not exact: averaged over parts instead of all examples, or binned?",
            **evidence,
        )
    return judge.failed(measured, hint=_explain(wrong[0], trials), **evidence)


def _sample_labels(subject: Subject) -> Floats:
    """Return labels from the whole training sample: validation may lack a rare class."""
    every = max(subject.num_rows() // TRIAL_ROWS, 1)
    labels = take_one_each(subject.train[LABEL])[::every][:TRIAL_ROWS]
    return np.asarray(labels.double().numpy())


def _make_trials(subject: Subject) -> list[PredictionSet]:
    task = subject.task
    if task.kind == "statistic":
        return [_make_statistic_trial(subject)]
    labels = _sample_labels(subject)
    generator = np.random.default_rng(subject.seed)
    if task.kind == "regression":
        unit = find_unit(subject)
        return [
            PredictionSet(
                name, task.score(unit(each), labels), measure_numbers(unit(each), unit(labels))
            )
            for name, each in _make_numbers(labels, generator).items()
        ]
    width = 2
    if task.kind == "multiclass":
        width = task.predict(compute_output(subject, select_head(subject.validation, 2))).shape[-1]
    noisy = _make_probabilities(labels, width, generator)
    # Few different predictions, each repeated: definitions differ in how they count ties.
    few = noisy[:DISTINCT_ANSWERS]
    far = (few**2).sum(axis=1) - 2 * noisy @ few.T  # squared distances, up to a constant per row
    kept = _choose_kept(labels)
    made = {
        "noisy": (noisy, labels),
        "tied": (noisy[far.argmin(axis=1)], labels),
        "imbalanced": (noisy[kept], labels[kept]),
    }
    is_binary = task.kind == "binary"
    return [
        PredictionSet(
            name,
            task.score(chances[:, 1].copy() if is_binary else chances, truth),
            measure_classes(chances, truth),
            (chances[:, 1], truth) if is_binary else None,
        )
        for name, (chances, truth) in made.items()
    ]


def _make_probabilities(labels: Floats, width: int, generator: np.random.Generator) -> Floats:
    """Return noisy probabilities [N, C], biased towards some classes."""
    lean = np.minimum(0.4 * np.arange(width), MOST_LEAN)
    logits = generator.normal(scale=1.2, size=(len(labels), width)) - lean
    logits[np.arange(len(labels)), labels.astype(int)] += 1.5
    shares = np.exp(logits)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _make_numbers(labels: Floats, generator: np.random.Generator) -> dict[str, Floats]:
    scale = max(float(labels.std()), 1e-12)
    noisy = labels + scale * generator.normal(scale=0.7, size=len(labels))
    tied = labels.mean() + scale * np.round((noisy - labels.mean()) / scale)
    made = {"noisy": noisy, "tied": tied, "biased": 0.6 * noisy + 0.3 * scale}
    # Logarithms of amounts and counts are not defined below what labels can be.
    return {name: np.maximum(each, labels.min()) for name, each in made.items()}


def _choose_kept(labels: Floats) -> Flags:
    """Return which rows to keep so that every second class is rare, but present."""
    kept = np.ones(len(labels), dtype=np.bool_)
    for code in np.unique(labels)[1::2]:
        rows = np.flatnonzero(labels == code)
        kept[rows] = np.arange(len(rows)) % KEPT_OF_RARE == 0
    return kept


def _make_statistic_trial(subject: Subject) -> PredictionSet:
    """Score noisy outputs, with the task and with independent code (tokens, retrieval)."""
    task, group = subject.task, subject.task.scored_together
    rows = max(min(MEASURED_ROWS, task.scoring_rows) // group, 1) * group
    batch = select_head(subject.validation, rows)
    output = compute_output(subject, batch)
    generator = torch.Generator().manual_seed(subject.seed)
    # Outputs of an untrained model are all similar; to compare definitions, they must differ.
    spread = 2.0 * max(float(output.std()), 1.0)
    output = output + spread * torch.randn(output.shape, generator=generator)
    quantities: dict[str, float] = {}
    statistics = task.statistic(output, batch).double().numpy()
    weights = batch.get(WEIGHT, torch.ones(len(batch[LABEL]))).double()
    if is_per_token(output, batch[LABEL]):
        quantities |= _measure_tokens(task, output, batch, statistics)
    one_answer = "gain" not in task.statistics
    if one_answer and group > 1 and output.ndim == 3 and output.shape[1] == 2:
        quantities |= _measure_retrieval(output, weights, group)
    return PredictionSet("noisy", task.score(statistics, weights.numpy()), quantities)


def _measure_tokens(
    task: Task, output: Tensor, batch: Batch, statistics: Floats
) -> dict[str, float]:
    """Compute quantities from the loss of every token that counts."""
    labels = find_wanted_tokens(task, output, batch)
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


def _measure_retrieval(output: Tensor, weights: Tensor, group: int) -> dict[str, float]:
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


def _list_meanings(metric: str, trials: Sequence[PredictionSet]) -> list[str]:
    """Return the quantities that the metric may be and that every trial has."""
    return [name for name in find_meanings(metric) if all(name in t.quantities for t in trials)]


def _is_fitting(metric: str, trials: Sequence[PredictionSet], tolerance: float) -> bool:
    return any(
        _is_equal_to(metric, name, trials, tolerance) for name in _list_meanings(metric, trials)
    )


def _is_equal_to(
    metric: str, quantity: str, trials: Sequence[PredictionSet], tolerance: float = SAME
) -> bool:
    return all(
        quantity in trial.quantities
        and np.isclose(
            trial.measured[metric], trial.quantities[quantity], rtol=tolerance, atol=tolerance / 10
        )
        for trial in trials
    )


def _find_threshold(metric: str, trials: Sequence[PredictionSet]) -> float | None:
    """Return the threshold for class 1 that explains the metric; None if none does."""

    def fits(trial: PredictionSet, at: float) -> bool:
        if trial.given is None:
            return False
        chance, labels = trial.given
        found = measure_answers((chance >= at).astype(np.int64), labels.astype(np.int64), 2)
        return _is_fitting(metric, [PredictionSet(trial.name, trial.measured, found)], SAME)

    kinds = {name.split(" of ")[0].split()[-1] for name in _list_meanings(metric, trials)}
    if kinds.isdisjoint(ANSWERED):
        return None
    return next((at for at in THRESHOLDS if all(fits(trial, at) for trial in trials)), None)


def _describe_difference(metric: str, trials: Sequence[PredictionSet]) -> str:
    """Describe the largest difference from the most similar quantity."""

    def gap(trial: PredictionSet, name: str) -> float:
        return abs(trial.measured[metric] - trial.quantities[name])

    names = _list_meanings(metric, trials)
    nearest = min(names, key=lambda name: sum(gap(trial, name) for trial in trials))
    worst = max(trials, key=lambda trial: gap(trial, nearest))
    return (
        f"{metric} is {worst.measured[metric]:.4g} on {worst.name} predictions, expected "
        f"{worst.quantities[nearest]:.4g} ({nearest})"
    )


def _explain(metric: str, trials: Sequence[PredictionSet]) -> str:
    # Its own kind first: the ROC area of predicted classes equals the balanced accuracy.
    for name in sorted(trials[0].quantities, key=lambda name: metric not in name):
        if _is_equal_to(metric, name, trials):
            return f"{metric} computes {name}: fix score, or rename the metric"
    return (
        f"check score: is {metric} computed along the wrong axis, averaged over parts instead of "
        "all examples, for the wrong class, or from predicted classes instead of probabilities?"
    )


def find_meanings(metric: str) -> tuple[str, ...]:
    """Return the quantities that a metric of this name may be."""
    name = metric.lower().replace("-", "_").replace(" ", "_")
    for average in AVERAGES:
        name = f"{average}_{name[: -len(average) - 1]}" if name.endswith(f"_{average}") else name
    for at in ("recall_at_", "recall@", "hit_rate_at_", "hits_at_", "top_"):
        if name.startswith(at) and name[len(at) :].isdigit():
            found = name[len(at) :]
            return tuple(f"recall at {found}{of}" for of in ("", " of texts", " of pictures"))
    name = _ALIASES.get(name, name)
    return _MEANINGS.get(name, (name,))


def measure_classes(chances: Floats, labels: Floats) -> Quantities:
    """Return scikit-learn's metrics of class probabilities [N, C]."""
    truth, classes = labels.astype(np.int64), chances.shape[1]
    answers = chances.argmax(axis=1) if classes > 2 else (chances[:, 1] >= 0.5).astype(np.int64)
    # One column per class would exhaust the memory with thousands of classes.
    squares = np.sum(chances**2, axis=1) - 2 * chances[np.arange(len(truth)), truth] + 1
    found = {
        "log_loss": metrics.log_loss(truth, chances, labels=list(range(classes))),
        "brier": float(np.mean(squares)),
        "brier per class": float(np.mean(squares)) / classes,
    }
    found["log_loss in bits"] = found["log_loss"] / np.log(2)
    found |= _measure_areas(chances, truth)
    if classes == 2:
        precision, recall, _ = metrics.precision_recall_curve(truth, chances[:, 1])
        found |= {
            "roc_auc of class 1": metrics.roc_auc_score(truth, chances[:, 1]),
            "roc_auc of hard answers": metrics.roc_auc_score(truth, answers),
            "average_precision of class 1": metrics.average_precision_score(truth, chances[:, 1]),
            "area under precision and recall": metrics.auc(recall, precision),
            "brier of class 1": metrics.brier_score_loss(truth, chances[:, 1]),
        }
    else:
        order = np.argsort(-chances, axis=1, kind="stable")
        for k in _TOP:
            hits = (order[:, :k] == truth[:, None]).any(axis=1)
            found[f"accuracy in the first {k}"] = float(hits.mean())
    answered = measure_answers(answers, truth, classes)
    return {**answered, **{name: float(value) for name, value in found.items()}}


def measure_answers(answers: Codes, truth: Codes, classes: int) -> Quantities:
    """Return scikit-learn's metrics of predicted classes [N], without probabilities."""
    found = {
        "accuracy": metrics.accuracy_score(truth, answers),
        "error_rate": 1 - metrics.accuracy_score(truth, answers),
        "balanced_accuracy": metrics.recall_score(truth, answers, average="macro", zero_division=0),
        "matthews_corrcoef": metrics.matthews_corrcoef(truth, answers),
        "cohen_kappa": metrics.cohen_kappa_score(truth, answers),
    }
    for name, measure in _THRESHOLDED.items():
        for some, of in ((None, ""), (list(range(classes)), " of all classes")):
            for average in AVERAGES:
                found[f"{average} {name}{of}"] = measure(
                    truth, answers, labels=some, average=average, zero_division=0
                )
        for code in range(2 if classes == 2 else 0):
            found[f"{name} of class {code}"] = measure(
                truth, answers, pos_label=code, zero_division=0
            )
    return {name: float(value) for name, value in found.items()}


def measure_numbers(predicted: Floats, labels: Floats) -> Quantities:
    """Return scikit-learn's metrics of predicted numbers [N]."""
    squared = float(metrics.mean_squared_error(labels, predicted))
    found = {
        "mse": squared,
        "rmse": squared**0.5,
        "mae": metrics.mean_absolute_error(labels, predicted),
        "median_absolute_error": metrics.median_absolute_error(labels, predicted),
        "max_error": metrics.max_error(labels, predicted),
        "r2": metrics.r2_score(labels, predicted),
        "explained_variance": metrics.explained_variance_score(labels, predicted),
        "pearson": float(np.corrcoef(predicted, labels)[0, 1]),
        "sum of squared errors": squared * len(labels),
    }
    found["squared correlation"] = found["pearson"] ** 2
    return {name: float(value) for name, value in found.items()}


def _measure_areas(chances: Floats, truth: Codes) -> dict[str, float]:
    """Return areas averaged over the classes that occur, one against the rest, and over pairs."""
    counts = np.bincount(truth, minlength=chances.shape[1])
    present = np.flatnonzero(counts)
    found = {}
    for name, measure in _AREAS.items():
        areas = [measure(truth == code, chances[:, code]) for code in present]
        found[f"macro {name}"] = float(np.mean(areas))
        found[f"weighted {name}"] = float(np.average(areas, weights=counts[present]))
    if len(present) == chances.shape[1] > 2:
        # By definition; scikit-learn takes 30 s for 100 classes.
        members = [chances[truth == code] for code in range(chances.shape[1])]
        areas = []
        for one, other in permutations(range(len(members)), 2):
            own, foreign = members[one][:, one, None], members[other][None, :, one]
            areas.append(np.mean(own > foreign) + np.mean(own == foreign) / 2)
        found["one-vs-one roc_auc"] = float(np.mean(areas))
    return found


def _describe_miscounted_bytes(subject: Subject) -> str:
    """Describe texts counted with more bytes than they have; empty if there are none."""
    task, text = subject.task, subject.task.columns.label
    if "bytes" not in task.statistics or subject.validation_rows[text].dtype != pl.String:
        return ""
    rows = subject.validation_rows.filter(pl.col(text).str.len_chars() >= 2 * FEWEST_CHARACTERS)
    rows = rows.head(min(COUNTED_ROWS, task.scoring_rows))
    if rows.height < FEWEST_CHARACTERS:
        return ""
    # Shorter than a context, and of different lengths: a constant added to all has no slope.
    cut = [
        each[: FEWEST_CHARACTERS + place % FEWEST_CHARACTERS]
        for place, each in enumerate(rows[text])
    ]
    texts = pl.Series(text, cut, dtype=pl.String)
    try:
        batch = task.encode(rows.with_columns(texts))
        found = task.statistic(compute_output(subject, batch), batch).double()
    except Exception:  # a task may reject shorter texts
        return ""
    column = found.reshape(rows.height, -1)[:, list(task.statistics).index("bytes")]
    weights = batch.get(WEIGHT, torch.ones(rows.height)).double()
    counted, have = (column * weights).numpy(), texts.str.len_bytes().to_numpy().astype(float)
    slope = float(np.polyfit(have, counted, 1)[0])
    if slope <= MOST_BYTES:
        return ""
    return f"for {rows.height} texts, {slope:.2g} bytes are counted for each actual byte"
