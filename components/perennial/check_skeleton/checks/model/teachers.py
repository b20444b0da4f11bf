"""Check of `[training.distillation]`: the teachers fit, know something, and saw no test row."""

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import compute_constant_losses, find_training_constant
from perennial.check_skeleton.models import evaluated
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Floats, Subject, Teaching, select_head
from perennial.contracts.errors import PerennialError
from perennial.contracts.skeleton import CheckResult
from perennial.engine.data.loader import require_kept
from perennial.engine.evaluation.resampling import direction_of, sign_of
from perennial.engine.objective import distillation_losses
from perennial.engine.task import ANSWERS, LABEL, Task, inputs_of
from perennial.engine.teachers import (
    MATCHED_ROWS,
    Teacher,
    load_teachers,
    mean_answer,
    require_learnable,
)

TRIED_ROWS = 32
NOISE_ERRORS = 3.0
"""A loss differs from another if the mean difference exceeds so many standard errors."""


@check(
    "teachers",
    expects="each teacher predicts the same label, better than the best constant; no test row seen",
    tolerance=f"{NOISE_ERRORS:g} standard errors",
    source="Hinton et al. 2015, arXiv:1503.02531; guides: ensembles",
)
def check_teachers(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the teachers fit the task, and that their predictions help."""
    teaching = subject.teaching
    if teaching is None or not teaching.teachers.members:
        reason = "no [training.distillation]" if teaching is None else "there is no champion yet"
        return judge.skipped(f"{reason}: labels alone teach")
    if teaching.seen.count:
        return judge.failed(
            "; ".join(teaching.seen.lines),
            hint="name teachers that were trained under this split rule: the gate would judge on "
            "rows that they were trained on",
        )
    try:
        teachers = _fit_teachers(subject, teaching)
        gains = [_measure_gain(subject, teacher) for teacher in teachers]
        is_augmented = _changes_inputs(subject)
    except PerennialError as error:
        evidence = f": {error.evidence}" if error.evidence else ""
        return judge.failed(f"{error.problem}{evidence}", hint=error.action)
    shown = "; ".join(line for _, line in gains)
    if not all(helps for helps, _ in gains):
        return judge.failed(
            shown,
            hint="this teacher does not help: are its classes in another order, or is the data no "
            "longer what it was trained on?",
        )
    doubts = list(teaching.seen.lines)
    if is_augmented:
        doubts.append(
            "teachers answer for the stored rows, not for their augmented views, which taught "
            "worse in Beyer et al. 2022 (arXiv:2106.05237): compare with augmentation off"
        )
    return judge.warned(shown, hint="; ".join(doubts)) if doubts else judge.passed(shown)


def _fit_teachers(subject: Subject, teaching: Teaching) -> list[Teacher]:
    """Load the teachers, and compute the loss of a new model against them.

    Raises:
        BadTaskError: they do not fit the task.
    """
    task, rows = subject.task, subject.train_rows
    require_learnable(task, teaching.distillation, teaching.teachers, teaching.snapshot)
    teachers = load_teachers(teaching.teachers.members, task, rows.head(MATCHED_ROWS))
    batch = select_head(subject.train, TRIED_ROWS)
    answers = mean_answer(teachers, rows.head(TRIED_ROWS), teaching.distillation.softening)
    batch[ANSWERS] = torch.from_numpy(answers.astype(np.float32))
    with torch.no_grad():
        output = evaluated(subject.build_model())(**inputs_of(batch)).float()
        distillation_losses(task, output, batch, teaching.distillation.softening)
    return teachers


def _changes_inputs(subject: Subject) -> bool:
    """Whether augmentation changes the inputs.

    Raises:
        BadTaskError: it changes labels, too.
    """
    if type(subject.task).augment is Task.augment:
        return False
    batch = select_head(subject.train, TRIED_ROWS)
    copy = {name: tensor.clone() for name, tensor in batch.items()}
    found = subject.task.augment(copy, torch.Generator().manual_seed(subject.seed))
    require_kept(batch[LABEL], found[LABEL], subject.task)
    return any(not torch.equal(tensor, found[name]) for name, tensor in inputs_of(batch).items())


def _measure_gain(subject: Subject, teacher: Teacher) -> tuple[bool, str]:
    """Return whether a teacher is better than a constant on validation rows, and by how much."""
    task, labels = subject.task, subject.validation[LABEL]
    answers, (best, _) = teacher.answer(subject.validation_rows), find_training_constant(subject)
    if task.kind == "regression":
        name = next(iter(task.metrics))
        constant = task.predict(best).detach().double().numpy()
        found, known = (
            task.measure(name, predictions, labels.double().numpy())
            for predictions in (answers, np.broadcast_to(constant, answers.shape))
        )
        helps = sign_of(direction_of(task, name, "the task's metrics")) * (found - known) > 0
        shown = f"{name} {found:.4g}, of the best constant {known:.4g}"
        return helps, f"{teacher.title}: validation {shown}"
    losses = _log_losses(answers, labels)
    constant = compute_constant_losses(subject, best, subject.validation).double().numpy()
    gain = constant - losses
    error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    shown = f"log loss {losses.mean():.4g}, of the best constant {constant.mean():.4g}"
    return bool(gain.mean() > NOISE_ERRORS * error), f"{teacher.title}: validation {shown}"


def _log_losses(probabilities: Floats, labels: Tensor) -> Floats:
    codes = labels.long().numpy()
    if probabilities.ndim == 1:
        probabilities = np.stack([1.0 - probabilities, probabilities], axis=1)
    chosen = probabilities[np.arange(len(codes)), codes]
    losses: Floats = -np.log(np.clip(chosen, np.finfo(np.float32).tiny, None))
    return losses
