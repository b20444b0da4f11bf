"""Short trainings in simplified mode: Adam at a constant rate, nothing random, nothing decayed."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from components.check_skeleton.subject import Subject, mean_loss, rows_of
from components.engine.task import LABEL, Batch, Task, inputs_of

BATCH_STATISTICS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip


def simplified(model: nn.Module) -> nn.Module:
    """Dropout and its like off; normalisation by batch statistics on, as in training."""
    model.eval()
    for module in model.modules():
        if isinstance(module, BATCH_STATISTICS):
            module.train()
    return model


def updates(
    task: Task, model: nn.Module, batches: Iterable[Batch], learning_rate: float
) -> Iterator[Tensor]:
    """Update the model on each batch, as far as the caller iterates.

    A model that gets no gradient at all is left as it is: judging that is the checks' business.

    Yields:
        The mean loss before each update, once the update is made; the gradients still stand.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=learning_rate) if trainable else None
    for batch in batches:
        loss = mean_loss(task.losses(model(**inputs_of(batch)), batch), batch)
        if optimizer is not None and loss.requires_grad:
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        yield loss


def shuffled_batches(subject: Subject, batch: Batch, steps: int) -> Iterator[Batch]:
    """Batches drawn from a larger one, reshuffled under the seed whenever it is used up."""
    generator = torch.Generator().manual_seed(subject.seed)
    rows = len(batch[LABEL])
    size = min(subject.settings.batch_rows, rows)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(rows, generator=generator)
        yield rows_of(batch, order[:size])
        order = order[size:]
