"""Context parallelism: each process works on a part of every sequence.

Everything but attention treats tokens one by one. For attention the processes exchange parts of the
sequence for heads and back (Ulysses), so that each attends over whole sequences with some heads:
equal work for all, though late tokens see more than early ones.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.parallelism.exchange import all_to_all, mean_over, uncompiled
from perennial.engine.parallelism.plan import matching
from perennial.engine.task import LABEL, WEIGHT, Batch, ParallelPlan, Task
from perennial.engine.world.layout import Layout


def share_sequences(model: nn.Module, plan: ParallelPlan, owner: str, mesh: DeviceMesh) -> None:
    """Make attention see whole sequences though every process has a part, in place.

    Raises:
        BadTaskError: the plan names modules that are not there.
    """
    group = mesh.get_group()
    for _, module in matching(model, plan.attention, owner):
        exchange = _Exchange(group)
        module.register_forward_pre_hook(uncompiled(exchange.to_heads))
        module.register_forward_hook(uncompiled(exchange.to_parts))

    def mean(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return mean_over(output, group)

    if plan.sequence_means:
        for _, module in matching(model, plan.sequence_means, owner):
            module.register_forward_hook(uncompiled(mean))


def own_sequences(batches: list[Batch], task: Task, layout: Layout) -> list[Batch]:
    """Return this process's part of every sequence; whole batches without context parallelism.

    An example's weight is divided by how many of its positions count in each part, so that the
    parts' weighted losses add up to the example's.
    """
    if layout.size("context") == 1:
        return batches
    plan = sequence_plan(task)
    return [_part(batch, plan, layout) for batch in batches]


def own_inputs(inputs: Batch, task: Task, layout: Layout) -> Batch:
    """Return this process's part of the inputs of every sequence, as `own_sequences` does."""
    if layout.size("context") == 1:
        return inputs
    return _slices(inputs, sequence_plan(task), layout)


class WholeSequences(nn.Module):
    """A model of parts of sequences as one of whole sequences, for evaluation.

    Every process of a context group calls it with the same inputs and gets the whole output, whose
    second dimension is the sequence.
    """

    def __init__(self, model: nn.Module, task: Task, layout: Layout) -> None:
        super().__init__()
        self.model = model
        # Scoring restores the mode that it finds here.
        self.training = model.training
        self._plan, self._layout = sequence_plan(task), layout

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the whole output."""
        part = self.model(**_slices(inputs, self._plan, self._layout)).contiguous()
        parts = [torch.empty_like(part) for _ in range(self._layout.size("context"))]
        dist.all_gather(parts, part, group=self._layout.mesh["context"].get_group())
        return torch.cat(parts, dim=1)


def whole_sequences(model: nn.Module, task: Task, layout: Layout) -> nn.Module:
    """Return the model, called with whole sequences whatever the layout."""
    return WholeSequences(model, task, layout) if layout.size("context") > 1 else model


def sequence_plan(task: Task) -> ParallelPlan:
    """Return the plan of a task whose sequences are shared.

    Raises:
        BadTaskError: it does not declare which tensors are sequences.
    """
    plan = task.parallel_plan()
    if plan is None or LABEL not in plan.sequence:
        raise BadTaskError(
            f"training.parallelism.context divides sequences, but {type(task).__name__} does not "
            "declare which tensors are sequences",
            evidence=f"`sequence` of its plan is {dict(plan.sequence) if plan else None}",
            action="name every tensor with a sequence dimension there, the label among them",
        )
    return plan


def _part(batch: Batch, plan: ParallelPlan, layout: Layout) -> Batch:
    counted = batch[LABEL] != plan.ignored_label
    part = _slices(batch, plan, layout)
    inside = part[LABEL] != plan.ignored_label
    share = inside.flatten(1).sum(1) / counted.flatten(1).sum(1).clamp(min=1)
    part[WEIGHT] = (batch[WEIGHT] * share) if WEIGHT in batch else share
    return part


def _slices(batch: Batch, plan: ParallelPlan, layout: Layout) -> Batch:
    size, place = layout.size("context"), layout.place["context"]
    sliced, length = dict(batch), 0
    for name, dimension in plan.sequence.items():
        if name not in batch:
            continue
        length = batch[name].shape[dimension]
        if length % size:
            raise PerennialError(
                f"the sequence length {length} is not divisible by {size} processes",
                evidence=f"`{name}` has the shape {list(batch[name].shape)}",
                action="pad or cut sequences to a multiple of training.parallelism.context",
            )
        part = length // size
        sliced[name] = batch[name].narrow(dimension, place * part, part)
    if plan.positions:
        device = next(iter(batch.values())).device
        part = length // size
        sliced[plan.positions] = torch.arange(place * part, (place + 1) * part, device=device)
    return sliced


class _Exchange:
    """Swaps parts of the sequence for heads, and back."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._size = group, dist.get_world_size(group)

    def to_heads(self, module: nn.Module, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Queries, keys and values: all heads of a part → some heads of the whole sequence."""
        # Packed, so that they travel in one message: [B, part, process, heads, features].
        grouped = [
            tensor.view(*tensor.shape[:2], self._size, -1, tensor.shape[3]) for tensor in tensors
        ]
        packed = torch.cat(grouped, dim=3).movedim(2, 0)
        whole = self._swap(packed).movedim(0, 1).flatten(1, 2)
        return torch.split(whole, [group.shape[3] for group in grouped], dim=2)

    def to_parts(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        """Turn attention's output, some heads of the whole sequence, into all heads of a part."""
        batch, length, heads, features = output.shape
        part = length // self._size
        parts = output.reshape(batch, self._size, part, heads, features).movedim(1, 0)
        return self._swap(parts).movedim(0, 2).flatten(2, 3)

    def _swap(self, blocks: Tensor) -> Tensor:
        """Send one block of the first dimension to each process, and receive one from each."""
        one_each = [1] * self._size
        return all_to_all(blocks, one_each, one_each, self._group)
