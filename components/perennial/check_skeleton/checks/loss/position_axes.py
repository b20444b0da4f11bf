"""Find losses of classes by position, of pixels or words, that are normalised over positions."""

import torch

from perennial.check_skeleton.free_outputs import compute_output, probe
from perennial.check_skeleton.models import Losses
from perennial.check_skeleton.subject import Subject, select_head
from perennial.engine.task import LABEL

ROWS = 8
# Of the mean loss; what rounding leaves of a constant that a softmax cancels.
SAME = 1e-4
SPREAD = 2.0


@torch.no_grad()
def find_normalised_positions(subject: Subject, losses: Losses) -> int | None:
    """Return the output axis of positions along which a constant changes no loss, if any.

    A softmax over classes cancels what is added to all classes of a position. One that cancels what
    is added to all positions of a class runs over the wrong axis. Only outputs with one axis more
    than their labels, whole numbers [B, ...], are judged.
    """
    batch = select_head(probe(subject), ROWS * subject.task.scored_together)
    output, labels = compute_output(subject, batch), batch[LABEL]
    places = range(1, output.ndim)
    classes = [axis for axis in places if _without(output.shape, axis) == labels.shape]
    is_dense = labels.ndim > 1 and not labels.is_floating_point() and output.is_floating_point()
    if not is_dense or not classes or subject.task.scored_together > 1:
        return None
    generator = torch.Generator().manual_seed(subject.seed)
    output = output + SPREAD * torch.randn(output.shape, generator=generator)
    before = losses(output, batch)

    def cancels(axis: int) -> bool:
        shape = [1 if each == axis else size for each, size in enumerate(output.shape)]
        moved = losses(output + SPREAD * torch.randn(shape, generator=generator), batch)
        return torch.allclose(before, moved, rtol=SAME, atol=SAME * float(before.abs().mean()))

    wrong = [axis for axis in places if axis not in classes and cancels(axis)]
    return wrong[0] if wrong and not any(map(cancels, classes)) else None


def _without(shape: torch.Size, axis: int) -> torch.Size:
    return shape[:axis] + shape[axis + 1 :]
