"""Check `label_alignment`: stretches and groups of rows whose labels belong to other rows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline

from perennial.check_skeleton.baselines import describe_refusal, make_columns, make_table
from perennial.check_skeleton.checks.data.labels.cut_times import describe_cut_times
from perennial.check_skeleton.checks.data.labels.lost_groups import (
    describe_lost_groups,
    describe_turned_groups,
)
from perennial.check_skeleton.checks.data.labels.moved_rows import find_moved_rows
from perennial.check_skeleton.checks.data.labels.shifted_groups import (
    CLEAR,
    FEWEST_ROWS,
    LITTLE,
    NOTHING,
    find_shifted_groups,
    is_little,
)
from perennial.check_skeleton.checks.data.labels.unripe_labels import describe_unripe_labels
from perennial.check_skeleton.checks.data.signals import read_labels
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Codes, Flags, Floats, Subject, select_rows
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import Batch, inputs_of

# As many as predictions are good enough for.
STRETCHES = 16, 8, 4
# Half of the stretches may be damaged.
USUAL = 0.75
FOLDS = 5
RIDGE = 10.0
# Labels or predictions that hardly differ within a stretch correlate with nothing.
LEAST_VARIANCE = 0.25
MOST_CLASSES = 32
SHORTEST_WAVE, MOST_WAVES, BANDS = 64, 16, 16


UNKNOWN_YET = (
    (
        describe_unripe_labels,
        "is the window of the label over for these rows? Leave out rows whose label is not known "
        "yet, as of the last two months for an event within two months",
    ),
    (
        describe_cut_times,
        "was the event still to come when the data was exported? Leave these rows out with all "
        "that began as late, or learn with a loss for times that are cut",
    ),
)


@dataclass(frozen=True)
class Fit:
    """A linear model's predictions of rows that it was not fitted on, and their labels."""

    predicted: Floats  # [N, C]
    labels: Floats  # ranks [N, 1], or whether a row is of a class or has a tag [N, C]

    def correlate(self, rows: Codes, others: Codes | None = None) -> float:
        """Return the correlation in these rows, over all columns; NaN if one side hardly varies.

        `others` are the rows whose labels are compared, by default the same.
        """
        sides = []
        chosen = rows, rows if others is None else others
        for values, taken in zip((self.predicted, self.labels), chosen, strict=True):
            inner = values[taken] - values[taken].mean(axis=0)
            if (inner**2).mean() <= LEAST_VARIANCE * values.var(axis=0).mean():
                return np.nan
            sides.append(inner)
        first, second = sides
        return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


@check(
    "label_alignment",
    expects="no stretch of rows, in file order, in which inputs tell nothing of labels that they "
    "predict elsewhere; no group of rows, as of one device, whose inputs predict the labels of "
    "other rows; both of two classes among the newest rows",
    source="guides: look at labels beside their inputs; limits: chance among "
    f"{STRETCHES[0]} stretches",
    needs_losses=False,
    needs_labels=True,
)
def check_label_alignment(subject: Subject, judge: Judge) -> CheckResult:
    """Check that a linear model predicts the labels of every part of the sample."""
    for describe, hint in UNKNOWN_YET:
        if found_unknown := describe(subject):
            return judge.failed(found_unknown, hint=hint)
    columns = [each.tabulate(MOST_CLASSES) for each in read_labels(subject)]
    refusal = "" if columns else "labels are not numbers, classes or tags"
    if subject.num_rows() < STRETCHES[-1] * FEWEST_ROWS:
        refusal = f"fewer than {STRETCHES[-1] * FEWEST_ROWS} rows"
    if refusal := refusal or describe_refusal(inputs_of(subject.train)):
        return judge.skipped(refusal)
    labels = np.concatenate(columns, axis=1)
    fit = _fit(subject, labels, np.arange(len(labels)))
    parts, found, usual = _correlate_stretches(fit)
    if turned := _judge_turned_groups(judge, subject, fit):
        return turned
    if usual < CLEAR / math.sqrt(len(parts[0])):
        return _judge_moved_rows(judge, subject, labels) or judge.passed(
            f"labels are predicted too weakly to tell: correlation {usual:.2f}"
        )
    is_clear = found >= NOTHING / math.sqrt(len(parts[0]))
    healthy = np.concatenate([rows for rows, clear in zip(parts, is_clear, strict=True) if clear])
    for rows in _join_neighbours(parts, ~is_clear):
        here = fit.correlate(rows)
        if is_little(here, usual, len(rows)) and (
            here < -LITTLE * usual or _is_unlearnable(subject, labels, rows, healthy)
        ):
            return judge.failed(
                f"in rows {rows[0] + 1:,} to {rows[-1] + 1:,} of {len(labels):,}, in file order, "
                f"a linear model's predictions and the labels correlate by {here:.2f}; elsewhere "
                f"by {usual:.2f}",
                hint="labels there belong to other rows, or mean something else: a join or a sort "
                "that moved one column alone, a damaged partition, classes or signs exchanged",
            )
    return _judge_groups(judge, subject, fit, usual) or judge.passed(
        f"a linear model's predictions and the labels correlate in each of {len(parts)} stretches; "
        f"usually by {usual:.2f}"
    )


def _judge_moved_rows(judge: Judge, subject: Subject, labels: Floats) -> CheckResult | None:
    """Judge labels that all stand a row away from their inputs; None if they do not."""

    def predict(rows: Codes, others: Codes) -> float:
        moved = labels.copy()
        moved[rows] = labels[others]
        return float(np.nan_to_num(_fit(subject, moved, rows).correlate(np.arange(len(rows)))))

    if not (moved := find_moved_rows(subject, predict)):
        return None
    return (judge.failed if moved.is_certain else judge.warned)(
        moved.description,
        hint="a column that was pasted or shifted alone begins a row late or early: join labels by "
        "the row's id. Correct for series whose inputs contain the label of the row before",
    )


def _judge_turned_groups(judge: Judge, subject: Subject, fit: Fit) -> CheckResult | None:
    turned, is_unknown = describe_turned_groups(subject, fit.correlate)
    if not turned:
        return None
    return (judge.failed if is_unknown else judge.warned)(
        turned,
        hint="are these labels turned, in sign or in class, as a correction in place of an error? "
        "Correct if the two mean the same, and a feature tells which",
    )


def _judge_groups(judge: Judge, subject: Subject, fit: Fit, usual: float) -> CheckResult | None:
    """Judge groups of rows, as of one device or plate, with labels of other rows; None if none."""
    if shifted := find_shifted_groups(subject, fit.correlate, usual):
        report = judge.failed if shifted.is_certain else judge.warned
        return report(
            shifted.description,
            hint="do these labels belong to other rows? Rows counted from 0 and from 1, a shift "
            "without its group, a device whose clock or zero is wrong",
        )

    def is_lost(rows: Codes, others: Codes) -> bool:
        chosen = np.random.default_rng(subject.seed).permutation(others)
        return _is_unlearnable(subject, fit.labels, rows, chosen)

    if lost := describe_lost_groups(subject, fit.labels, fit.correlate, is_lost):
        return judge.warned(
            lost,
            hint="do these labels belong to other rows of their group? Plates that are numbered by "
            "row and by column, lists that were sorted in another way before they were joined",
        )
    return None


def _correlate_stretches(fit: Fit) -> tuple[Sequence[Codes], Floats, float]:
    """Return the shortest stretches in which correlations are clear, those, and the usual one."""
    rows = np.arange(len(fit.labels))
    for count in STRETCHES:
        parts = np.array_split(rows, count)
        found = np.array([fit.correlate(part) for part in parts])
        usual = float(np.quantile(np.nan_to_num(found), USUAL))
        if len(parts[0]) >= FEWEST_ROWS and usual >= CLEAR / math.sqrt(len(parts[0])):
            break
    return parts, found, usual


def _fit(subject: Subject, labels: Floats, rows: Codes) -> Fit:
    """Predict each fifth of the rows by a model of the other four."""
    inputs = _add_spectra(inputs_of(select_rows(subject.train, torch.from_numpy(rows))))
    model = make_pipeline(make_columns(inputs), Ridge(RIDGE))
    folds = KFold(FOLDS, shuffle=True, random_state=subject.seed)
    predicted = cross_val_predict(model, make_table(inputs), labels[rows], cv=folds)
    return Fit(predicted.reshape(labels[rows].shape), labels[rows])


def _add_spectra(inputs: Batch) -> Batch:
    """Return inputs with the logarithms of the power of waves, [B, T] or [B, C, T], in bands.

    A wave of the same sound begins anywhere, so that its numbers add up to nothing.
    """
    spectra = {}
    for name, tensor in inputs.items():
        is_wave = tensor.is_floating_point() and tensor.ndim in (2, 3)
        if not is_wave or tensor.shape[-1] < SHORTEST_WAVE or bool(tensor.isnan().any()):
            continue
        waves = tensor.reshape(len(tensor), -1, tensor.shape[-1])
        if waves.shape[1] <= MOST_WAVES:
            power = torch.fft.rfft(waves - waves.mean(dim=-1, keepdim=True)).abs().square()
            bands = [band.mean(dim=-1) for band in power[..., 1:].chunk(BANDS, dim=-1)]
            levels = torch.cat(bands, dim=1)
            spectra[f"spectrum of {name}"] = (levels + 1e-6 * levels.mean() + 1e-12).log()
    return {**inputs, **spectra}


def _join_neighbours(parts: Sequence[Codes], is_unclear: Flags) -> Iterator[Codes]:
    """Yield the rows of each run of stretches that are not clearly predicted."""
    for unclear, run in groupby(
        zip(is_unclear, parts, strict=True), key=lambda each: bool(each[0])
    ):
        if unclear:
            yield np.concatenate([rows for _, rows in run])


def _is_unlearnable(subject: Subject, labels: Floats, rows: Codes, healthy: Codes) -> bool:
    """Whether a model of these rows alone fails, too, where one of as many others does not.

    Otherwise inputs and labels are related in another way there, as after a change of the world.
    """
    own, other = (
        _fit(subject, labels, each).correlate(np.arange(len(each)))
        for each in (rows, healthy[: len(rows)])
    )
    return other > 0 and is_little(own, other, len(rows))
