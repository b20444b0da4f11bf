"""Baselines: scores of a constant, a linear model and simple rules on the test split."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor, nn

from perennial.check_skeleton.free_outputs import compute_output, find_training_constant, probe
from perennial.check_skeleton.subject import Codes, Floats, Subject, once
from perennial.contracts.errors import BadTaskError, join_names
from perennial.engine.evaluation.baseline_rows import BaselineRows
from perennial.engine.evaluation.scoring import ScoredBatch, score_in_parts
from perennial.engine.task import LABEL, Batch, Task, check_metrics, inputs_of

MOST_NUMBERS = 4096
MOST_CODES = 64
# Categories that are rarer in the sample share one weight: their own would be too noisy.
RARE = 5


@dataclass(frozen=True)
class Baselines:
    """Baseline scores that the gate compares with."""

    # Baseline → metrics on the test rows.
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    # Why a baseline is missing.
    notes: tuple[str, ...] = ("not measured: the task failed its checks",)
    rows: BaselineRows = field(default_factory=BaselineRows)  # the predictions behind the scores


def measure_baselines(
    subject: Subject,
    test_rows: pl.DataFrame,
    time: str | None = None,
    positions: Codes | None = None,
) -> Baselines:
    """Score each baseline, learned from the training sample, on rows of the test split.

    `time` names the column with the rows' time, where they have one; `positions` are those of the
    rows in the split, by default its first rows.

    Raises:
        BadTaskError: the task's own baseline has another shape than its predictions, or the human
            figure is of a metric that the task does not have.
    """
    task, batch = subject.task, subject.task.encode(test_rows)
    constant = _score_constant(subject, batch)
    labels = constant.labels
    predicted, notes = {"constant": constant.predictions}, []
    linear = fit_linear_model(subject)
    if isinstance(linear, str):
        notes.append(f"no linear baseline: {linear}")
    else:
        predicted["linear"] = linear(batch)
    if time is not None and task.kind != "statistic":
        predicted["last_value"] = _predict_last_values(subject, test_rows, time, constant)
    own = task.baseline(test_rows)
    if own is not None:
        if own.shape != constant.predictions.shape:
            raise BadTaskError(
                "the task's baseline(rows) has another shape than its predictions",
                evidence=f"{list(own.shape)} for {list(constant.predictions.shape)}",
                action="return what predict returns, one entry per row",
            )
        predicted["task"] = own.astype(np.float64)
    scores = {name: task.score(values, labels) for name, values in predicted.items()}
    scores["constant"]["loss"] = constant.mean_loss()
    # A metric of one's own may be undefined, such as a deviance of a line's negative counts.
    for name, found in scores.items():
        undefined = [metric for metric, value in found.items() if not math.isfinite(value)]
        if undefined:
            notes.append(f"{name} has no finite {join_names(undefined)}")
        scores[name] = {metric: value for metric, value in found.items() if metric not in undefined}
    if human := subject.settings.human:
        named = {f"skeleton.human.{name}": name for name in human}
        check_metrics(type(task), task.options, named)
        scores["human"] = dict(human)
    if positions is None:
        positions = np.arange(test_rows.height)
    rows = BaselineRows(positions, labels, predicted, {"constant": constant.losses})
    return Baselines(scores, tuple(notes), rows)


def compute_control_losses(
    subject: Subject, train: Batch | None = None, validation: Batch | None = None
) -> tuple[Floats, Floats] | None:
    """Return log losses or squared errors [N] of a linear model and of the constant, if it fits.

    Both learn from `train` and are measured on `validation`, by default the subject's samples.
    """
    if train is not None and validation is not None:
        subject = replace(subject)
        vars(subject).update(train=train, validation=validation)
    linear = fit_linear_model(subject)
    if isinstance(linear, str):
        return None
    labels = subject.validation[LABEL].double().numpy()
    pair = linear(subject.validation), _score_constant(subject, subject.validation).predictions
    if subject.task.kind == "regression":
        return (pair[0] - labels) ** 2, (pair[1] - labels) ** 2
    codes, is_binary = labels.astype(int), subject.task.kind == "binary"
    chances = [np.stack([1 - each, each], axis=1) if is_binary else each for each in pair]
    # Predictions that only rank, as those of margins, say little of how common a label is.
    trained = subject.train[LABEL].double().numpy()
    shares = [(trained == code).mean() for code in range(chances[1].shape[1])]
    chances.append(np.tile(shares, (len(codes), 1)))
    own = (np.clip(each[np.arange(len(codes)), codes], 1e-7, 1.0) for each in chances)
    linear, *constants = (-np.log(each) for each in own)
    return linear, min(constants, key=np.mean)


def z_score(differences: Floats) -> float:
    """Return the mean over its standard error; 0 if nothing differs or values are not finite."""
    error = float(np.std(differences, ddof=1) / np.sqrt(len(differences)))
    return float(np.mean(differences)) / error if 0 < error < np.inf else 0.0


@once
def fit_linear_model(subject: Subject) -> Callable[[Batch], Floats] | str:
    """Return the predictions of a linear model of the encoded inputs, or why there is none."""
    inputs = inputs_of(subject.train)
    refusal = describe_refusal(inputs)
    if subject.task.kind == "statistic":
        refusal = "the task measures examples, a linear model predicts labels"
    if refusal:
        return refusal
    table, columns = make_table(inputs), make_columns(inputs)
    classifies = subject.task.kind != "regression"
    model = make_pipeline(columns, LogisticRegression(max_iter=200) if classifies else Ridge())
    labels = subject.train[LABEL].double().numpy()
    if classifies and (labels == labels[0]).all():
        return "all rows are of one class"
    with warnings.catch_warnings():
        # A baseline need not be fitted to the last digit.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(table, labels)
    width = subject.task.predict(compute_output(subject, probe(subject))).shape[-1]
    return lambda batch: _predict(model, inputs_of(batch), subject.task, width)


def _predict_last_values(
    subject: Subject, rows: pl.DataFrame, time: str, constant: ScoredBatch
) -> Floats:
    """Return predictions from the newest label of an earlier time; the constant's without one.

    The label itself for numbers; for classes how often each came after it in the training sample.
    """
    predicted = constant.predictions.copy()
    following, earlier = _pair_in_time(rows[time])
    before = constant.labels[earlier]
    if subject.task.kind == "regression":
        predicted[following] = before
        return predicted
    is_binary = predicted.ndim == 1
    classes = 2 if is_binary else predicted.shape[1]
    trained = subject.train[LABEL].numpy().astype(int)
    later, sooner = _pair_in_time(subject.train_rows[time])
    counts = np.zeros((classes, classes))
    np.add.at(counts, (trained[sooner], trained[later]), 1)
    # One pseudo-row of the usual shares: a class that was seen once is weak evidence.
    shares = np.bincount(trained, minlength=classes) / len(trained)
    after = (counts + shares) / (counts.sum(axis=1, keepdims=True) + 1)
    chances = after[before.astype(int)]
    predicted[following] = chances[:, 1] if is_binary else chances
    return predicted


def _pair_in_time(times: pl.Series) -> tuple[Codes, Codes]:
    """Return the rows that have an earlier one, in the order of time, and the newest of each.

    Rows of one time do not know each other's labels: their order in the file may be the label's.
    """
    order = times.arg_sort()[times.null_count() :]
    first = times.gather(order).rank("min").cast(pl.Int64).to_numpy() - 1
    has_earlier = first > 0
    places = order.to_numpy().astype(np.int64)
    return places[has_earlier], places[first[has_earlier] - 1]


def _predict(model: Pipeline, inputs: Batch, task: Task, width: int) -> Floats:
    table = make_table(inputs)
    if task.kind == "regression":
        return np.asarray(model.predict(table), dtype=np.float64)
    known = model.predict_proba(table)
    if task.kind == "binary":
        return np.asarray(known[:, 1], dtype=np.float64)
    chances = np.full((len(table), width), 1e-7)
    chances[:, model.classes_.astype(int)] = known
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def make_columns(inputs: Batch) -> ColumnTransformer:
    """Return what standardises the numbers of a table, and gives each code a column of its own.

    A missing number is the mean, and has a column that says so.
    """
    numbers = sum(t[0].numel() for t in inputs.values() if t.is_floating_point())
    width = sum(t[0].numel() for t in inputs.values())
    filled = SimpleImputer(strategy="constant", fill_value=0.0, add_indicator=True)
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=RARE)
    return ColumnTransformer(
        [
            ("numbers", make_pipeline(StandardScaler(), filled), list(range(numbers))),
            ("codes", one_hot, list(range(numbers, width))),
        ]
    )


def describe_refusal(inputs: Batch) -> str:
    """Return why these tensors are not a table; empty when they are."""
    for name, tensor in inputs.items():
        size = int(tensor[0].numel())
        if tensor.is_floating_point() and size > MOST_NUMBERS:
            return f"{name} has {size} numbers per example, more than {MOST_NUMBERS}"
        if not tensor.is_floating_point() and (tensor.ndim > 2 or size > MOST_CODES):
            return f"{name} is a sequence or grid of {size} codes, not a table's columns"
    if not sum(int(tensor[0].numel()) for tensor in inputs.values()):
        return "the inputs are empty"
    infinite = [name for name, tensor in inputs.items() if tensor.isinf().any()]
    return f"{join_names(infinite)} has infinite numbers" if infinite else ""


def make_table(inputs: Batch) -> Floats:
    """Return all numbers, then all codes, shape [B, columns]."""
    ordered = sorted(inputs.values(), key=lambda tensor: not tensor.is_floating_point())
    flat = [tensor.reshape(len(tensor), -1).double().numpy() for tensor in ordered]
    return np.concatenate(flat, axis=1)


def _score_constant(subject: Subject, batch: Batch) -> ScoredBatch:
    """Score the training sample's best constant: class shares, the mean, token frequencies."""
    best, _ = find_training_constant(subject)
    return score_in_parts(subject.task, _Constant(best), batch)


class _Constant(nn.Module):
    """A model that gives every example the same output."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, **inputs: Tensor) -> Tensor:
        rows = len(next(iter(inputs.values())))
        return self.output.expand(rows, *self.output.shape[1:])
