"""Ensembling: compare the selected checkpoint with the mean of it and the last champions.

On validation rows, by a rule that is fixed before: the gate then judges one model on test rows, so
its level is spent once.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from torch import nn

from perennial.contracts.data import Split, TaskColumns
from perennial.contracts.errors import BadDataError, BadTaskError
from perennial.contracts.initial import EnsembleSection
from perennial.contracts.initial_model import Champions, InitialModel, Origin
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import ENSEMBLE, Challenger
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.resampling import (
    Blocks,
    direction_of,
    resample,
    sign_of,
    standard_error,
)
from perennial.engine.evaluation.scoring import score_split, scoring_device
from perennial.engine.export import load_model, weight_files, write_weights
from perennial.engine.serving.pyfunc import predict_rows
from perennial.engine.task import Task
from perennial.engine.teachers import (
    KINDS,
    MATCHED_ROWS,
    Teacher,
    load_version,
    match,
    predicts_logits,
    require_columns,
    rows_to_match,
    task_of,
)
from perennial.select_checkpoint.selection import RESAMPLES, breaches_of, paired_draws
from perennial.tasks.ensemble import Ensemble, EnsembleOptions, Member

CHALLENGER = "this training"
TIMED_ROWS = 1_024


@dataclass(frozen=True)
class Cost:
    """What a model costs to serve, measured here."""

    megabytes: float
    milliseconds: float
    rows: int


@dataclass(frozen=True)
class Comparison:
    """The ensemble beside the selected checkpoint, on all validation rows.

    Attributes:
        members: Champions in it; empty if there is none to compare with.
        figures: Metric of the checkpoint, and of the ensemble.
        gain: By how much the ensemble is better; negative if it is worse.
        costs: Of the checkpoint, and of the ensemble.
    """

    members: tuple[Origin, ...] = ()
    left_out: tuple[str, ...] = ()
    figures: tuple[float, float] = (0.0, 0.0)
    gain: float = 0.0
    error: float = 0.0
    costs: tuple[Cost, ...] = ()
    is_chosen: bool = False
    reason: str = "there is no champion to average with"


def consider_ensemble(
    rule: EnsembleSection,
    champions: Champions,
    challenger: Path,
    dataset: Dataset,
    blocks: Blocks,
    *,
    metric: str,
    limits: Mapping[str, float],
) -> Comparison:
    """Compare, and replace the exported checkpoint by the ensemble where it is clearly better."""
    task, model = load_model(challenger, scoring_device())
    rows = rows_to_match(dataset.batches(Split.TRAIN, MATCHED_ROWS), task.columns.label)
    members, left_out = _fit_members(champions, task, rows, dataset.snapshot)
    left_out = (*champions.left_out, *left_out)
    if not members:
        return Comparison(left_out=left_out)
    whole = _average(Challenger.read(challenger), task, model, members)
    single, mean = (
        score_split(*each, dataset, Split.VALIDATION) for each in ((task, model), whole)
    )
    draws = blocks.draws(RESAMPLES)
    ours, theirs = paired_draws(
        [resample(task, metric, each, blocks, draws) for each in (mean, single)]
    )
    figures = single.metric(task, metric), mean.metric(task, metric)
    gain = sign_of(direction_of(task, metric, "selection.metric")) * (figures[1] - figures[0])
    error = standard_error(ours - theirs, blocks)
    broken = breaches_of(task, mean.metrics(task), limits)
    # A standard error that is not known is infinite, and 0 where all draws are equal.
    is_chosen = not broken and gain > 0.0 and gain > rule.gain_standard_errors * error
    found = Comparison(
        members=tuple(pinned.origin for pinned, _ in members),
        left_out=left_out,
        figures=figures,
        gain=gain,
        error=error,
        costs=tuple(_measure(*each, dataset) for each in ((task, model), whole)),
        is_chosen=is_chosen,
        reason=_reason(rule, metric, figures, gain, error, broken=broken, is_chosen=is_chosen),
    )
    if is_chosen:
        _replace(challenger, *whole, found)
    return found


def _fit_members(
    champions: Champions, task: Task, rows: pl.DataFrame, snapshot: Snapshot
) -> tuple[list[tuple[InitialModel, Teacher]], tuple[str, ...]]:
    """Return the champions whose predictions can be averaged with the task's, and why others not.

    Raises:
        DamagedModelError: weights are not those that were pinned.
    """
    found: list[tuple[InitialModel, Teacher]] = []
    left_out: list[str] = []
    if task.kind not in KINDS or (task.kind != "regression" and not predicts_logits(task)):
        return [], (f"the output of {type(task).__name__} is not logits or a value: no mean of it",)
    for pinned in champions.members:
        try:
            require_columns(pinned, task, snapshot)
            member = match(load_version(pinned, scoring_device()), task, rows)
        except (BadTaskError, BadDataError) as error:
            left_out.append(f"version {pinned.origin.version}: {error.problem} ({error.evidence})")
            continue
        found.append((pinned, member))
    return found, tuple(left_out)


def _average(
    record: Challenger,
    task: Task,
    model: nn.Module,
    members: Sequence[tuple[InitialModel, Teacher]],
) -> tuple[Task, nn.Module]:
    """Return the ensemble of the exported checkpoint and the members."""
    described = [
        Member(
            title=CHALLENGER,
            weights_sha256=record.weights_sha256,
            task=record.task,
            options=record.options,
            columns=record.columns,
        )
    ]
    features = dict(record.columns.features)
    for pinned, member in members:
        former = task_of(pinned)
        described.append(
            Member(
                title=f"version {pinned.origin.version}",
                weights_sha256=next(iter(pinned.origin.files.values())),
                task=former.task,
                options=former.options,
                columns=former.columns,
                order=member.order,
                unit=member.unit,
            )
        )
        # A column that only one member reads is an input of the ensemble, too.
        features |= former.columns.features
    columns = TaskColumns(label=record.columns.label, features=features)
    ensemble = Ensemble(EnsembleOptions(members=tuple(described)), columns)
    tasks = [task, *(member.task for _, member in members)]
    models = [model, *(member.model for _, member in members)]
    ensemble.load_state({"members": [each.state() for each in tasks]})
    mean = ensemble.build_model()
    for part, trained in zip(mean.get_submodule("members").children(), models, strict=True):
        part.load_state_dict(trained.state_dict())
    return ensemble, mean.to(scoring_device()).eval()


def _measure(task: Task, model: nn.Module, dataset: Dataset) -> Cost:
    """Return the size of the weights, and the time that predicting some rows took."""
    rows = next(dataset.batches(Split.VALIDATION, TIMED_ROWS))
    predict_rows(task, model, rows)
    # The first prediction is a warm-up: it also initialises libraries.
    start = time.perf_counter()
    predict_rows(task, model, rows)
    size = sum(value.nbytes for value in model.state_dict().values())
    return Cost(size / 1e6, 1e3 * (time.perf_counter() - start), rows.height)


def _replace(folder: Path, task: Task, model: nn.Module, found: Comparison) -> None:
    """Export the ensemble in the place of the checkpoint."""
    record = Challenger.read(folder)
    # Weights may be shards, of which some would be left beside the new file.
    for file in weight_files(folder):
        file.unlink()
    options = task.options.model_dump(mode="json")
    record.model_copy(
        update={
            "task": ENSEMBLE,
            "options": options,
            "task_state": task.state(),
            "columns": task.columns,
            "weights_sha256": write_weights(model, folder),
            "members": found.members,
            "reason": f"{record.reason}; {found.reason}",
        }
    ).write(folder)


def _reason(
    rule: EnsembleSection,
    metric: str,
    figures: tuple[float, float],
    gain: float,
    error: float,
    *,
    broken: Sequence[str],
    is_chosen: bool,
) -> str:
    shown = f"{metric} {figures[1]:.4g} against {figures[0]:.4g}"
    if broken:
        return f"not the mean with the last champions ({shown}), because {' and '.join(broken)}"
    is_known = error > 0.0 and math.isfinite(error)
    times = f"{abs(gain) / error:.1f} standard errors" if is_known else "noise unknown"
    side = "above" if is_chosen else "not above"
    which = "the mean with" if is_chosen else "not the mean with"
    return (
        f"{which} the last champions: {shown}, {'better' if gain > 0 else 'worse'} by "
        f"{abs(gain):.2g} ({times}), {side} "
        f"{rule.gain_standard_errors:g} standard errors"
    )
