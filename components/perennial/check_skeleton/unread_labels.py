"""Unread labels: a loss that compares inputs, such as a triplet loss, has a constant label."""

import polars as pl
import torch
from torch import Tensor

from perennial.check_skeleton.subject import Subject, evaluated, head_of, seeded
from perennial.engine.task import LABEL, Batch, inputs_of

PROBED_ROWS = 64


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
        batch = head_of(subject.train, rows.height)
        own = _measured(subject, batch)
        replaced = [{**batch, LABEL: other} for other in _others(batch[LABEL])]
        values = rows[label]
        exchanged = task.encode(rows.with_columns(pl.concat([values[1:], values[:1]])))
        return all(_are_equal(own, _measured(subject, each)) for each in replaced) and not (
            _are_equal(own[:1], _measured(subject, exchanged)[:1])
        )
    except Exception:  # inputs that the task rejects prove nothing
        return False


def _measured(subject: Subject, batch: Batch) -> list[Tensor]:
    """Return losses, training losses and statistics, with the same random numbers each time."""
    task = subject.task
    with torch.no_grad(), seeded(subject.seed):
        output = evaluated(subject.build_model())(**inputs_of(batch))
        return [method(output, batch) for method in (task.losses, task.training_losses)] + [
            task.statistic(output, batch)
        ]


def _others(label: Tensor) -> list[Tensor]:
    if label.dtype == torch.bool:
        return [~label]
    return [label + 1, label * 0 + 7, torch.arange(label.numel()).view(label.shape).to(label.dtype)]


def _are_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
