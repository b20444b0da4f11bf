"""Teachers: what registered versions predict for raw rows, in the form that the model learns.

A teacher is called as a served model is: its own task encodes the rows, in evaluation mode and
without gradients. What comes out are numbers, so no update can reach its weights.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from perennial.contracts.errors import BadTaskError
from perennial.contracts.initial_model import FormerTask, InitialModel, Teachers
from perennial.contracts.snapshot import Snapshot
from perennial.engine.config.distillation import Distillation
from perennial.engine.initial_weights import read_weights
from perennial.engine.task import LABEL, Task, inputs_of, load_task, to_device

KINDS = ("binary", "multiclass", "regression")
Floats = NDArray[np.float64]
# The logarithm of the smallest probability; beyond it float64 has no digits left.
LEAST = 1e-300
# Rows whose labels are matched with predictions.
MATCHED_ROWS = 4_096
# Labels of float32 that two tasks standardise differently agree to a few units in the last place.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Teacher:
    """A pinned version that predicts, with the places of its predictions in the model's form.

    Attributes:
        order: For `multiclass`: the place of each of the model's classes among its own.
        unit: For `regression`: factor and offset from its unit of the label to the model's.
    """

    title: str
    task: Task
    model: nn.Module
    order: tuple[int, ...] = ()
    unit: tuple[float, float] = (1.0, 0.0)

    @torch.no_grad()
    def answer(self, rows: pl.DataFrame, temperature: float = 1.0) -> Floats:
        """Return predictions for rows, softened: shape [N], or [N, C] in the order of the model.

        Raises:
            BadTaskError: they are not finite.
        """
        batch = self.task.encode(rows)
        device = next((each.device for each in self.model.parameters()), torch.device("cpu"))
        parts = []
        for start in range(0, rows.height, self.task.scoring_rows):
            some = slice(start, start + self.task.scoring_rows)
            inputs = {name: tensor[some] for name, tensor in inputs_of(batch).items()}
            output = self.model(**to_device(inputs, device))
            # In double precision: float32 rounds probabilities near 1 to 1, whatever the logit.
            parts.append(self.task.predict(output.double()).double().cpu())
        found = torch.cat(parts)
        if not found.isfinite().all():
            raise BadTaskError(
                f"the teacher {self.title} predicts values that are not finite",
                evidence=f"for {int((~found.isfinite()).sum()):,} of {found.numel():,} values",
                action="name another version in training.distillation.teachers",
            )
        if self.task.kind == "regression":
            factor, offset = self.unit
            return (factor * found + offset).numpy()
        return _softened(found[:, list(self.order)] if self.order else found, temperature).numpy()


def load_teachers(
    teachers: Sequence[InitialModel],
    task: Task,
    rows: pl.DataFrame,
    device: torch.device | str = "cpu",
) -> list[Teacher]:
    """Load the teachers of a task, and match their predictions with its own.

    The labels of some training rows match the predictions.

    Raises:
        DamagedModelError: weights are not those that were pinned.
        BadTaskError: a teacher does not fit: its kind, label, columns, classes, or its unit.
    """
    return [match(load_version(each, device), task, rows) for each in teachers]


def rows_to_match(chunks: Iterable[pl.DataFrame], label: str) -> pl.DataFrame:
    """Return the first `MATCHED_ROWS` rows, or more, read on until two labels differ.

    Equal labels, as of one row or of a month without sales, fit any unit.
    """
    found = pl.DataFrame()
    for chunk in chunks:
        # Rows with equal labels tell no more than the first of them.
        found = pl.concat([found.head(MATCHED_ROWS), chunk]) if found.height else chunk
        if found.height >= MATCHED_ROWS and found[label].n_unique() > 1:
            break
    return found


def mean_answer(
    teachers: Sequence[Teacher], rows: pl.DataFrame, temperature: float = 1.0
) -> Floats:
    """Return the mean of the teachers' predictions: shape [N], or probabilities [N, C]."""
    answers = [teacher.answer(rows, temperature) for teacher in teachers]
    mean: Floats = np.mean(answers, axis=0)
    return mean


def require_learnable(
    task: Task, distillation: Distillation, teachers: Teachers, snapshot: Snapshot
) -> None:
    """Check what can be known without loading a teacher.

    Raises:
        BadTaskError: the task's kind or predictions are not those that a teacher's stand for, or a
            teacher reads columns that the data does not have, or predicts another one.
    """
    name = type(task).__name__
    if task.kind not in KINDS:
        raise BadTaskError(
            f"training.distillation is not for {name}, whose kind is {task.kind}",
            evidence=f"it is for {', '.join(KINDS)}",
            action="remove [training.distillation]",
        )
    if task.kind == "regression" and distillation.temperature is not None:
        raise BadTaskError(
            f"training.distillation.temperature has no effect on {name}, a regression",
            action="remove it",
        )
    if task.kind != "regression" and not predicts_logits(task):
        raise BadTaskError(
            f"training.distillation needs logits, which the output of {name} is not",
            evidence="its `predict` is not the softmax, or the sigmoid, of the output",
            action="let the model return logits, and leave `predict` as it is",
        )
    for each in teachers.members:
        require_columns(each, task, snapshot)


def require_columns(teacher: InitialModel, task: Task, snapshot: Snapshot) -> None:
    """Check that a pinned version predicts the task's label from columns of the data.

    Raises:
        BadTaskError: it does not.
    """
    title, former = _title(teacher), task_of(teacher)
    label = task.columns.label
    problem, evidence = "", ""
    if former.columns.label != label:
        problem = "predicts another column"
        evidence = f"{former.columns.label!r} instead of {label!r}"
    elif label in former.columns.features:
        problem, evidence = "reads the label", f"{label!r} is among its features"
    elif differing := [
        name
        for name, dtype in former.columns.features.items()
        if snapshot.columns.get(name) != dtype
    ]:
        problem = "reads columns that the data does not have"
        evidence = ", ".join(
            f"{name} {former.columns.features[name]}, here {snapshot.columns.get(name, 'missing')}"
            for name in differing[:3]
        )
    if problem:
        raise _misfit(title, problem, evidence)


def task_of(teacher: InitialModel) -> FormerTask:
    """Return the task that a pinned version was trained with."""
    if teacher.former is None:
        raise RuntimeError("pin_version() records the task of each version")
    return teacher.former


def load_version(teacher: InitialModel, device: torch.device | str = "cpu") -> Teacher:
    """Load a pinned version.

    Raises:
        DamagedModelError: its weights are not those that were pinned.
        BadTaskError: they do not fit its task.
    """
    former = task_of(teacher)
    task = load_task(former.task, former.options, former.columns)
    task.load_state(former.state)
    model = task.build_model()
    # Of an ensemble that a warm start or another ensemble continues, one member is read.
    state = {
        name: value
        for name, value in read_weights(teacher).items()
        if not any(fnmatchcase(name, pattern) for pattern in teacher.unused)
    }
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise _misfit(
            _title(teacher), "was trained by other code of its task", str(error).splitlines()[0]
        ) from error
    model.requires_grad_(requires_grad=False)
    return Teacher(_title(teacher), task, model.to(device).eval())


def match(teacher: Teacher, task: Task, rows: pl.DataFrame) -> Teacher:
    """Return the teacher with the places, or the unit, of its predictions.

    Raises:
        BadTaskError: its predictions are not those of the model's classes, or of its label.
    """
    if teacher.task.kind != task.kind:
        raise _misfit(
            teacher.title,
            "is of another kind",
            f"{teacher.task.kind} ({type(teacher.task).__name__}), the model is {task.kind}",
        )
    order = _class_order(teacher, task) if task.kind != "regression" else ()
    own, theirs = (each.encode(rows)[LABEL].double().numpy() for each in (task, teacher.task))
    if task.kind == "regression":
        return replace(teacher, unit=_unit(teacher.title, own, theirs))
    expected = np.asarray(order)[own.astype(np.int64)] if order else own
    if differing := int((expected != theirs).sum()):
        raise _misfit(
            teacher.title,
            "has other classes, or has them in another order",
            f"{differing:,} of {len(own):,} labels have another code there",
        )
    return replace(teacher, order=order)


def _class_order(teacher: Teacher, task: Task) -> tuple[int, ...]:
    """Return the place of each class by its name; empty where the tasks name none.

    Raises:
        BadTaskError: one of both has a class that the other lacks.
    """
    names, theirs = list(task.prediction_names), list(teacher.task.prediction_names)
    if not names or not theirs:
        return ()
    if set(names) != set(theirs):
        only = [f"only the model has {name}" for name in names if name not in theirs]
        only += [f"only the teacher has {name}" for name in theirs if name not in names]
        raise _misfit(teacher.title, "has other classes", "; ".join(only[:4]))
    return tuple(map(theirs.index, names)) if task.kind == "multiclass" else ()


def _unit(title: str, own: Floats, theirs: Floats) -> tuple[float, float]:
    """Return factor and offset by which the teacher's labels become the model's.

    A task may standardise labels by what it has fitted.

    Raises:
        BadTaskError: no factor and offset do.
    """
    if np.array_equal(own, theirs) or theirs.std() == 0.0:
        return 1.0, float(own.mean() - theirs.mean())
    factor, offset = np.polyfit(theirs, own, 1)
    error = float(np.abs(factor * theirs + offset - own).max())
    if error > ROUNDING * max(float(own.std()), np.abs(own).max()):
        raise _misfit(
            title,
            "encodes the label in another way",
            f"after scaling, its labels differ by up to {error:.3g}",
        )
    return float(factor), float(offset)


def _softened(predictions: Tensor, temperature: float) -> Tensor:
    """Return probabilities at a temperature: softmax(z / T), for the logits z that gave them."""
    if temperature == 1.0:
        return predictions
    if predictions.ndim > 1:
        return (predictions.clamp_min(LEAST).log() / temperature).softmax(dim=-1)
    logits = predictions.clamp_min(LEAST).log() - (1.0 - predictions).clamp_min(LEAST).log()
    return (logits / temperature).sigmoid()


def predicts_logits(task: Task) -> bool:
    """Whether predictions are the default of the task's kind, also where it overrides them."""
    if type(task).predict is Task.predict:
        return True
    made_up = torch.linspace(-3.0, 3.0, 12).reshape(4, 3)
    outputs = [made_up] if task.kind == "multiclass" else [made_up[:, :1], made_up[:, 0]]
    for output in outputs:
        try:
            found = task.predict(output)
        except Exception:  # user code may raise anything for a form that is not its own
            continue
        expected = Task.predict(task, output)
        if found.shape == expected.shape and torch.allclose(found, expected, atol=1e-6):
            return True
    return False


def _title(teacher: InitialModel) -> str:
    return f"{teacher.origin.model} version {teacher.origin.version}"


def _misfit(title: str, problem: str, evidence: str) -> BadTaskError:
    return BadTaskError(
        f"the teacher {title} {problem}",
        evidence=evidence,
        action="name another version in training.distillation.teachers, or train one on this data "
        "first",
    )
