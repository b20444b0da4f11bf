"""Models: how the checks run them, observe them, and train them for a few updates.

Short trainings use Adam at a constant rate, without dropout and weight decay.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import repeat
from types import UnionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from perennial.check_skeleton.subject import Subject, select_rows
from perennial.engine.task import LABEL, WEIGHT, Batch, Task, inputs_of

Losses = Callable[[Tensor, Batch], Tensor]
"""A task's `losses` or `training_losses`."""
FEW_UPDATES = 100
# The base classes of all that PyTorch has.
BATCH_STATISTICS, DROPOUTS = _BatchNorm, _DropoutNd


def build_noisy_model(subject: Subject) -> nn.Module:
    """Return an evaluation-mode model with noise on its weights: zeros hide no connection."""
    model = evaluated(subject.build_model())
    generator = torch.Generator().manual_seed(subject.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                # In wide layers many small changes add up, and outputs that are exponentials of
                # theirs would leave the range of numbers.
                fan_in = parameter.numel() / len(parameter) if parameter.ndim > 1 else 1.0
                parameter.add_(min(0.05, 0.5 / math.sqrt(max(fan_in, 1.0))) * noise)
    return model


def evaluated(model: nn.Module) -> nn.Module:
    """Return the model in evaluation mode, whatever its own train() returns."""
    model.eval()
    return model


@torch.no_grad()
def run_model(model: nn.Module, batch: Batch) -> Tensor:
    """Return the model's output for the inputs of a batch, without gradients."""
    output: Tensor = model(**inputs_of(batch))
    return output


@contextmanager
def watch_modules(
    model: nn.Module,
    note: Callable[..., object],
    *,
    kinds: type[nn.Module] | UnionType = nn.Module,
    is_before: bool = False,
) -> Iterator[None]:
    """Call `note(name, module, inputs, output)` at each call of a module of these kinds.

    With `is_before`, `note(name, module, inputs)`. What it returns replaces outputs or inputs.
    Calls within a transform of `torch.func` are passed over.
    """

    def note_values(name: str, *called: object) -> object:
        return None if is_in_transform() else note(name, *called)

    hooks = []
    for name, module in model.named_modules():
        if not isinstance(module, kinds):
            continue
        if is_before:
            hooks.append(module.register_forward_pre_hook(partial(note_values, name)))
        else:
            hooks.append(module.register_forward_hook(partial(note_values, name)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class FunctionWatch(TorchFunctionMode):
    """Notes every function of PyTorch that is called in its context; changes no result.

    A call that cannot be read is passed over: tensors of `vmap` have no values, and arguments may
    come by other names than expected. An error here would look like one of the user's model.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        given = kwargs or {}
        result = func(*args, **given)
        with suppress(Exception):
            self.note(func, args, given, result)
        return result

    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], result: object
    ) -> None:
        """Note a call, its arguments by position and by name, and what it returned."""
        raise NotImplementedError


def is_in_transform() -> bool:
    """Whether `vmap`, `grad` or another transform runs: its tensors have no values to look at."""
    return peek_interpreter_stack() is not None


def measure_changes(before: Tensor, after: Tensor) -> Tensor:
    """Return how far each number moved, relative to its size."""
    return (after - before).abs() / (1 + before.abs())


def run_up_to_difference(
    model: nn.Module, batch: Batch, other: Batch
) -> list[tuple[Tensor, Tensor]]:
    """Return both outputs at the steps up to the first whose label [B, T] differs.

    One pair for each axis of the output that may be the labels' steps. Rows of equal labels are
    left out; there is no pair if all are.
    """
    codes, others = (each.get(LABEL, torch.empty(0)) for each in (batch, other))
    before, after = (run_model(model, each) for each in (batch, other))
    if codes.ndim != 2 or others.shape != codes.shape or after.shape != before.shape:
        return []
    differs = (codes != others).long()
    is_known = (differs.cumsum(dim=1) - differs == 0) & (differs.sum(dim=1, keepdim=True) > 0)
    pairs = []
    # Classes may come first, and labels begin with a mark that no step answers.
    for axis, steps in enumerate(before.shape[1:], start=1):
        if differs.any() and 0 <= (marks := codes.shape[1] - steps) <= 1:
            known = is_known[:, marks:]
            if known.any():
                pairs.append((before.movedim(axis, 1)[known], after.movedim(axis, 1)[known]))
    return pairs


def compute_mean_loss(losses: Tensor, batch: Batch) -> Tensor:
    """Return the mean as the engine takes it: by weight where the batch has one."""
    if WEIGHT not in batch:
        return losses.mean()
    return (losses * batch[WEIGHT]).sum() / batch[WEIGHT].sum()


@torch.no_grad()
def measure_loss(losses: Losses, output: Tensor, batch: Batch) -> float:
    """Return the mean loss of an output for a batch."""
    return float(compute_mean_loss(losses(output, batch), batch))


def simplify(model: nn.Module) -> nn.Module:
    """Return the model with dropout off; batch statistics are used, as in training."""
    model.eval()
    for module in model.modules():
        if isinstance(module, BATCH_STATISTICS):
            module.train()
    return model


def is_own_loss(task: Task) -> bool:
    """Whether the task has a `training_losses` of its own."""
    return type(task).training_losses is not Task.training_losses


def is_trained_otherwise(task: Task) -> bool:
    """Whether the loss that is minimised differs from the measured loss."""
    return is_own_loss(task) or type(task).auxiliary_losses is not Task.auxiliary_losses


def run_updates(
    task: Task,
    model: nn.Module,
    batches: Iterable[Batch],
    learning_rate: float,
    *,
    as_trained: bool = False,
) -> Iterator[Tensor]:
    """Update the model on each batch, as far as the caller iterates.

    Yields the mean loss before each update, after the update; the gradients are kept. A model
    without any gradient is left unchanged: the checks report that. With `as_trained`, the training
    loss is minimised in place of the measured loss.
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


def train_model(subject: Subject, model: nn.Module, batches: Iterable[Batch]) -> None:
    """Update the model on each batch, at the first learning rate of the contract."""
    for _ in run_updates(subject.task, model, batches, subject.settings.learning_rates[0]):
        pass


def train_outputs(subject: Subject, batch: Batch) -> Tensor:
    """Return the outputs of a model that was trained on one batch a little, for this batch."""
    model = simplify(subject.build_model())
    train_model(subject, model, repeat(batch, FEW_UPDATES))
    return run_model(simplify(model), batch)


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
