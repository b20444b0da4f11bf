"""Objective: a micro-batch's part of the global loss, reported and differentiated."""

from torch import Tensor, nn

from perennial.contracts.errors import BadTaskError
from perennial.engine.config.training import TrainingSection
from perennial.engine.parallelism.parallelize import unwrapped
from perennial.engine.precision import computation
from perennial.engine.task import LABEL, WEIGHT, Batch, Task, inputs_of


def forward(
    task: Task, model: nn.Module, batch: Batch, training: TrainingSection
) -> tuple[Tensor, Tensor]:
    """Run the model; return the sum of the weighted losses, without and with auxiliary losses.

    The first is reported, the second is differentiated. Neither is scaled.

    Args:
        task: Computes the losses.
        model: Parallelized or not.
        batch: On the model's device.
        training: Its precision.
    """
    with computation(training, batch[LABEL].device):
        output = model(**inputs_of(batch))
    loss = weighted_losses(task, output.float(), batch, is_simplified=training.simplified).sum()
    auxiliary = task.auxiliary_losses(unwrapped(model))
    if auxiliary is None:
        return loss, loss
    return loss, loss + _weighted(auxiliary, batch).sum()


def weighted_losses(
    task: Task, output: Tensor, batch: Batch, *, is_simplified: bool = False
) -> Tensor:
    """Return the loss of each example, times its weight.

    A simplified training minimises the measured loss, without what training adds to it.

    Raises:
        BadTaskError: the task averaged them itself, which would weigh examples wrongly.
    """
    # A loss over the whole batch is no addition: the measured one is another.
    is_measured = is_simplified and not task.needs_whole_batch
    losses = (task.losses if is_measured else task.training_losses)(output, batch)
    if losses.shape != (len(batch[LABEL]),):
        raise BadTaskError(
            f"{type(task).__name__}.training_losses must return one loss per example",
            evidence=f"{len(batch[LABEL])} examples gave a tensor of shape {list(losses.shape)}",
            action="use reduction='none' and average over everything but the first dimension",
        )
    return _weighted(losses, batch)


def _weighted(losses: Tensor, batch: Batch) -> Tensor:
    return losses * batch[WEIGHT] if WEIGHT in batch else losses
