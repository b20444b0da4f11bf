"""Inputs that a check makes up, and labels that nothing reads: what a task may reject."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import torch
from torch import Tensor

from perennial.check_skeleton.models import evaluated, run_model
from perennial.check_skeleton.subject import (
    Subject,
    are_equal,
    find_differences,
    once,
    seeded,
    select_head,
    select_rows,
)
from perennial.contracts.user_code import place_of, user_code
from perennial.engine.task import LABEL, Batch, Task, inputs_of

TRIED_ROWS = 512
CHECKS = Path(__file__).parent
PROBED_ROWS = 64


class RefusedInputsError(Exception):
    """The task raises on inputs that a check made up."""

    def __init__(self, inputs: str, error: Exception) -> None:
        super().__init__(f"on {inputs}, which this check makes up, {describe_exception(error)}")


@contextmanager
def made_up(inputs: str) -> Iterator[None]:
    """Raise every exception of the block as an error on inputs of the check's own.

    Raises:
        RefusedInputsError: the block raised an exception.
    """
    try:
        yield
    except RefusedInputsError:
        raise
    except Exception as error:  # user code may raise anything
        raise RefusedInputsError(inputs, error) from error


@once
def are_inputs_of_label(subject: Subject) -> bool:
    """Whether inputs are made of the label's column, as a language model's are of its text."""
    rows, columns = subject.train_rows.head(PROBED_ROWS), subject.task.columns
    if columns.label in columns.features:
        return True
    try:
        alone = inputs_of(subject.task.encode(rows.drop(columns.label)))
    except Exception:  # the task needs the column
        return True
    return bool(find_differences(inputs_of(subject.task.encode(rows)), alone))


def find_method(error: Exception) -> str:
    """Return the method of the task, or the model's forward, that raised an exception."""
    methods = {name for name in dir(Task) if not name.startswith("_")} | {"forward"}
    frames = [
        frame.name
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(CHECKS)
    ]
    return next((name for name in frames if name in methods), "the task")


def describe_exception(error: Exception) -> str:
    """Return which method of the task raised what, and where in the user's own file."""
    place, text = place_of(error), " ".join(str(error).split())[:200]
    found = f"{find_method(error)} raises {type(error).__name__}: {text}"
    return f"{found} ({place})" if place else found


@once
def find_failure_on_real_rows(subject: Subject) -> str:
    """Return the error that the task raises on rows of the data; empty where it raises none.

    An exception in a check is weak evidence: the check may call what no training calls.
    """
    try:
        with user_code("the task"):
            _use_on_real_rows(subject)
    except Exception as error:  # user code may raise anything
        return describe_exception(error)
    return ""


@once
def find_cast(subject: Subject) -> str:
    """Return the lines for `encode` that cast what model or losses reject; empty if none help."""
    try:
        batch = select_head(subject.train, min(PROBED_ROWS, subject.task.scoring_rows))
    except Exception:  # user code may raise anything
        return ""
    doubles = [name for name, tensor in inputs_of(batch).items() if tensor.dtype == torch.float64]
    label = [LABEL] if LABEL in batch else []
    for floats, longs in (
        ([], []),  # they may reject nothing
        *((doubles, []), ([], label), (label, [])),
        *((doubles, label), (doubles + label, [])),
    ):
        casts = dict.fromkeys(floats, "float") | dict.fromkeys(longs, "long")
        changed = {
            name: getattr(tensor, casts[name])() if name in casts else tensor
            for name, tensor in batch.items()
        }
        try:
            with torch.no_grad(), user_code("the task"):
                output = run_model(evaluated(subject.build_model()), changed)
                is_right = len(subject.task.losses(output, changed)) == len(batch[LABEL])
        except Exception:  # user code may raise anything
            continue
        if is_right:
            return "; ".join(write_cast(name, cast) for name, cast in casts.items())
    return ""


def write_cast(name: str, cast: str) -> str:
    """Return the line of `encode` that casts a tensor of the batch."""
    key = "LABEL" if name == LABEL else f'"{name}"'
    return f"batch[{key}] = batch[{key}].{cast}()"


def _use_on_real_rows(subject: Subject) -> None:
    """Call once everything that a training, an evaluation and a served model call."""
    task, together = subject.task, subject.task.scored_together
    size = max(min(TRIED_ROWS, task.scoring_rows) // together, 1) * together
    rows = subject.validation_rows.head(size)
    subject.make_task().fit(subject.train_rows.lazy())
    restored = subject.make_task()
    restored.load_state(task.state())
    restored.build_model()
    batch = restored.encode(rows)
    train = select_rows(subject.train, slice(size))
    model = evaluated(subject.build_model())
    with torch.no_grad():
        for some in (train, batch):
            output, right = run_model(model, some), some[LABEL]
            losses = task.losses(output, some)
            if task.kind == "statistic":
                found, right = task.statistic(output, some), torch.ones_like(losses)
            else:
                found = task.predict(output)
            task.score(found.double().numpy(), right.double().numpy())
    generator = torch.Generator().manual_seed(subject.seed)
    changed = task.augment({name: each.clone() for name, each in train.items()}, generator)
    model.train()
    loss = task.training_losses(model(**inputs_of(changed)), changed).mean()
    task.auxiliary_losses(model)
    if loss.requires_grad:
        torch.autograd.backward(loss)
    task.expected_initial_loss()


@once
def is_label_unread(subject: Subject) -> bool:
    """Whether the label column reaches the loss among the inputs, and the encoded label is unused.

    Only where the encoded label is a constant, which neither losses nor `statistic` follow when it
    is replaced, while they follow the label column. Other kinds are scored by their labels.
    """
    task = subject.task
    if task.kind != "statistic" or bool((subject.train[LABEL] != subject.train[LABEL][:1]).any()):
        return False
    rows, label = subject.train_rows.head(PROBED_ROWS), task.columns.label
    try:
        batch = select_head(subject.train, rows.height)
        own = _measure(subject, batch)
        replaced = [{**batch, LABEL: other} for other in _make_other_labels(batch[LABEL])]
        values = rows[label]
        exchanged = task.encode(rows.with_columns(pl.concat([values[1:], values[:1]])))
        is_unread = all(all(map(are_equal, own, _measure(subject, each))) for each in replaced)
        return is_unread and not are_equal(own[0], _measure(subject, exchanged)[0])
    except Exception:  # inputs that the task rejects prove nothing
        return False


def _measure(subject: Subject, batch: Batch) -> list[Tensor]:
    """Return losses, training losses and statistics, with the same random numbers each time."""
    task = subject.task
    with torch.no_grad(), seeded(subject.seed):
        output = run_model(evaluated(subject.build_model()), batch)
        return [each(output, batch) for each in (task.losses, task.training_losses, task.statistic)]


def _make_other_labels(label: Tensor) -> list[Tensor]:
    if label.dtype == torch.bool:
        return [~label]
    return [label + 1, label * 0 + 7, torch.arange(label.numel()).view(label.shape).to(label.dtype)]
