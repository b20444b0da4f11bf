"""Live memory: peak bytes of a forward and backward pass.

Counted from the storages that operations make and that die again, which is the same on every device
and needs no allocator's statistics. What kernels allocate inside themselves is not seen.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from perennial.engine.config.training import TrainingSection
from perennial.engine.objective import forward
from perennial.engine.optimization.parameters import local
from perennial.engine.parallelism.pipeline import first_input
from perennial.engine.precision import COMPUTE_DTYPES, computation
from perennial.engine.task import Batch, Task, inputs_of


@dataclass(frozen=True)
class Part:
    """What a process computes at a time: the model, or a stage of a pipeline.

    Attributes:
        module: Divided by the plan of its task, not sharded.
        received: What comes from the stage before, for some examples; None for the model's inputs.
        has_loss: Whether the model's output appears here.
    """

    module: nn.Module
    received: Tensor | None = None
    has_loss: bool = True


@dataclass(frozen=True)
class PassMemory:
    """The largest number of bytes that a forward and backward pass holds beside the weights.

    Attributes:
        rows: Examples of the pass.
        activations: Without the parameters' gradients, but for the one just computed.
        with_gradients: With them, made as the backward pass proceeds.
        with_outside: With those of parameters outside the blocks alone, which sharding reduces at
            the very end.
        weight_casts: Copies of weights in a shorter type, made by autocast; in neither of these.
        batch: The rows themselves, which are in all of these.
        inputs: Those of them that the model takes.
        kept: From the forward to the backward pass, without the rows.
        exchanged: What comes from the stage before and, as gradients, from the one behind.
    """

    rows: int
    activations: int
    with_gradients: int
    with_outside: int
    weight_casts: int
    batch: int = 0
    inputs: int = 0
    kept: int = 0
    exchanged: int = 0


@dataclass(frozen=True)
class PassLine:
    """Two passes with different numbers of rows, and the line through them."""

    fewer: PassMemory
    more: PassMemory

    def at(self, rows: int) -> PassMemory:
        """Return the peak of a pass with so many rows."""
        fewer, more = self.fewer, self.more
        if more.rows in (rows, fewer.rows):
            return more
        factor = (rows - more.rows) / (more.rows - fewer.rows)

        def extended(name: str) -> int:
            last: int = getattr(more, name)
            return last + int(factor * (last - getattr(fewer, name)))

        return PassMemory(**{field.name: extended(field.name) for field in fields(PassMemory)})


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Counts the bytes of storages that operations make inside it, as long as they live.

    Args:
        device: What lies elsewhere does not count.
        existing: Tensors that were there before and count as nothing.
        weights: Those among them whose casts are counted apart.
    """

    def __init__(
        self, device: torch.device, existing: Sequence[Tensor], weights: Sequence[Tensor] = ()
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self._device = device
        self.live = 0
        self.peak = 0
        self.peak_with_gradients = 0
        self.peak_with_outside = 0
        self.weight_casts = 0
        self._gradients = 0
        self._outside = 0
        # Held, so that no new storage gets the identity of one of these.
        self._existing = [local(tensor).untyped_storage() for tensor in existing]
        self._known = {storage._cdata for storage in self._existing}
        self._weights = {local(tensor).untyped_storage()._cdata for tensor in weights}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Tensor, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            # A DTensor: it runs operations on its local part, which come here one by one.
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        is_cast = (
            func is torch.ops.aten._to_copy.default
            and args[0].untyped_storage()._cdata in self._weights
        )
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device == self._device:
                self._count(leaf.untyped_storage(), is_cast=is_cast)
        return result

    def keep_gradient(self, parameter: Tensor, *, is_outside: bool) -> None:
        """Count a parameter's gradient as kept and free it; for a hook after its accumulation."""
        if parameter.grad is not None:
            size = local(parameter.grad).nbytes
            self._gradients += size
            self._outside += size if is_outside else 0
            parameter.grad = None

    def _count(self, storage: torch.UntypedStorage, *, is_cast: bool) -> None:
        identity, size = storage._cdata, storage.nbytes()
        if size == 0 or identity in self._known:
            return
        self._known.add(identity)
        if is_cast:
            self.weight_casts += size
            weakref.finalize(storage, self._known.discard, identity)
            return
        self.live += size
        self.peak = max(self.peak, self.live)
        self.peak_with_gradients = max(self.peak_with_gradients, self.live + self._gradients)
        self.peak_with_outside = max(self.peak_with_outside, self.live + self._outside)
        weakref.finalize(storage, self._free, identity, size)

    def _free(self, identity: int, size: int) -> None:
        self._known.discard(identity)
        self.live -= size


def measure_pass(part: Part, task: Task, batch: Batch, section: TrainingSection) -> PassMemory:
    """Run one forward and backward pass, as the training would before weights are sharded.

    The part has its memory options applied and is left without gradients. Compiled blocks are
    measured uncompiled, which holds no less.
    """
    model = part.module.train()
    device = next(iter(batch.values())).device
    size, rows = sum(tensor.nbytes for tensor in batch.values()), len(next(iter(batch.values())))
    model_inputs = sum(tensor.nbytes for tensor in inputs_of(batch).values())
    sent = COMPUTE_DTYPES[section.precision].itemsize
    exchanged = 0
    if part.received is not None:
        received = part.received[torch.arange(rows, device=device) % len(part.received)]
        # Its gradient is computed in the training too, and sent back to the stage before.
        batch = {**batch, first_input(model): received.requires_grad_()}
        exchanged += received.numel() * sent
    existing = [*model.parameters(), *model.buffers(), *batch.values()]
    memory = LiveMemory(device, existing, list(model.parameters()))
    inside = {id(weight) for block in task.blocks(model) for weight in block.parameters()}
    hooks = [
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch
            partial(memory.keep_gradient, is_outside=id(parameter) not in inside)
        )
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    gradient = None
    with memory:
        end = _end_of_forward(part, task, batch, section)
    kept = memory.live
    if not part.has_loss:
        gradient = torch.zeros_like(end)
        exchanged += end.numel() * sent
    with memory:
        torch.autograd.backward(end, gradient)
    for hook in hooks:
        hook.remove()
    # The rows were there before and were not counted: they are added.
    return PassMemory(
        rows=rows,
        activations=memory.peak + size,
        with_gradients=memory.peak_with_gradients + size,
        with_outside=memory.peak_with_outside + size,
        weight_casts=memory.weight_casts,
        batch=size,
        inputs=model_inputs,
        kept=kept,
        exchanged=exchanged,
    )


def _end_of_forward(part: Part, task: Task, batch: Batch, section: TrainingSection) -> Tensor:
    """Return what the backward pass starts from: the loss, or the activation that is sent on."""
    if part.has_loss:
        return forward(task, part.module, batch, section)[1]
    with computation(section, next(iter(batch.values())).device):
        output: Tensor = part.module(**inputs_of(batch))
    return output
