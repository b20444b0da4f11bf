"""Short trainings: Adam at a constant rate, without dropout and weight decay."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from perennial.check_skeleton.subject import Subject, compute_mean_loss, select_rows
from perennial.engine.task import LABEL, Batch, Task, inputs_of

BATCH_STATISTICS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip


def simplify(model: nn.Module) -> nn.Module:
    """Return the model with dropout off; batch statistics are used, as in training."""
    model.eval()
    for module in model.modules():
        if isinstance(module, BATCH_STATISTICS):
            module.train()
    return model


def is_trained_otherwise(task: Task) -> bool:
    """Whether the loss that is minimised differs from the measured loss."""
    kind = type(task)
    is_own = kind.training_losses is not Task.training_losses
    return is_own or kind.auxiliary_losses is not Task.auxiliary_losses


def updates(
    task: Task, model: nn.Module, batches: Iterable[Batch], learning_rate: float,
    *, as_trained: bool = False,
) -> Iterator[Tensor]:  # fmt: skip
    """Update the model on each batch, as far as the caller iterates.

    A model without any gradient is left unchanged: the checks report that.

    Args:
        task: Defines the losses.
        model: The model to update.
        batches: One for each update.
        learning_rate: Constant.
        as_trained: Minimise the training loss in place of the measured loss.

    Yields:
        The mean loss before each update, after the update; the gradients are kept.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=learning_rate) if trainable else None
    for batch in batches:
        losses = task.training_losses if as_trained else task.losses
        loss = compute_mean_loss(losses(model(**inputs_of(batch)), batch), batch)
        auxiliary = task.auxiliary_losses(model) if as_trained else None
        if auxiliary is not None:
            loss = loss + compute_mean_loss(auxiliary, batch)
        if optimizer is not None and loss.requires_grad:
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        yield loss


def shuffle_batches(subject: Subject, batch: Batch, steps: int) -> Iterator[Batch]:
    """Yield batches of a larger one, reshuffled under the seed whenever it is used up."""
    generator = torch.Generator().manual_seed(subject.seed)
    rows = len(batch[LABEL])
    size = min(subject.settings.batch_rows, rows)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(rows, generator=generator)
        yield select_rows(batch, order[:size])
        order = order[size:]
