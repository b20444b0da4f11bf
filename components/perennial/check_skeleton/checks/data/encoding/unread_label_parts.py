"""Parts of a label of several numbers that neither losses nor statistics read."""

import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import is_per_token
from perennial.check_skeleton.models import build_noisy_model, run_model
from perennial.check_skeleton.subject import Subject, are_equal, seeded, select_head
from perennial.engine.task import LABEL, Batch

PROBED_ROWS = 256
# Longer labels are sequences, of which a loss may leave out the beginning or the padding.
MOST_PARTS = 8


def find_unread_parts(subject: Subject) -> list[int]:
    """Return the places in the label that change nothing when rows exchange what stands there."""
    task = subject.task
    batch = select_head(subject.train, min(PROBED_ROWS, task.scoring_rows))
    label = batch[LABEL]
    if task.kind != "statistic" or label.ndim != 2 or not 1 < label.shape[1] <= MOST_PARTS:
        return []
    try:
        output = run_model(build_noisy_model(subject), batch)
        if task.scored_together > 1 or is_per_token(output, label):
            return []
        own, unread = _measure(subject, output, batch), []
        for part in range(label.shape[1]):
            other = label.clone()
            other[:, part] = label[:, part].flip(0)
            exchanged = _measure(subject, output, {**batch, LABEL: other})
            if not are_equal(other, label) and all(map(are_equal, own, exchanged)):
                unread.append(part)
    except Exception:  # other checks judge models that raise; labels that are rejected are read
        return []
    return unread


def _measure(subject: Subject, output: Tensor, batch: Batch) -> list[Tensor]:
    """Return losses, training losses and statistics, with the same random numbers each time."""
    task = subject.task
    with torch.no_grad(), seeded(subject.seed):
        return [each(output, batch) for each in (task.losses, task.training_losses, task.statistic)]
