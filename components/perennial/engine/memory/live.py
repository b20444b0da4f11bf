"""Live memory: peak bytes of a forward and backward pass.

Counted from the storages that operations make and that die again, which is the same on every device
and needs no allocator's statistics. What kernels allocate inside themselves is not seen.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from perennial.engine.config.training import TrainingSection
from perennial.engine.objective import forward
from perennial.engine.task import Batch, Task


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
    """

    rows: int
    activations: int
    with_gradients: int
    with_outside: int
    weight_casts: int


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
        return PassMemory(
            rows,
            more.activations + int(factor * (more.activations - fewer.activations)),
            more.with_gradients + int(factor * (more.with_gradients - fewer.with_gradients)),
            more.with_outside + int(factor * (more.with_outside - fewer.with_outside)),
            more.weight_casts,
        )


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
        self._existing = [tensor.untyped_storage() for tensor in existing]
        self._known = {storage._cdata for storage in self._existing}
        self._weights = {tensor.untyped_storage()._cdata for tensor in weights}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Tensor, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        is_cast = func is torch.ops.aten._to_copy.default and self._is_weight(args[0])
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device == self._device:
                self._count(leaf.untyped_storage(), is_cast=is_cast)
        return result

    def keep_gradient(self, parameter: Tensor, *, is_outside: bool) -> None:
        """Count a parameter's gradient as kept and free it; for a hook after its accumulation."""
        if parameter.grad is not None:
            self._gradients += parameter.grad.nbytes
            self._outside += parameter.grad.nbytes if is_outside else 0
            parameter.grad = None

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._weights

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


def measure_pass(
    model: nn.Module, task: Task, batch: Batch, section: TrainingSection
) -> PassMemory:
    """Run one forward and backward pass, as the training would in a single process.

    Args:
        model: Not parallelized, with its memory options applied; it is left without gradients.
        task: Its loss is computed.
        batch: On the model's device.
        section: Its precision. Compiled blocks are measured uncompiled, which holds no less.
    """
    model.train()
    device = next(model.parameters()).device
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
    with memory:
        _, objective = forward(task, model, batch, section)
        torch.autograd.backward(objective)
    for hook in hooks:
        hook.remove()
    inputs = sum(tensor.nbytes for tensor in batch.values())
    return PassMemory(
        rows=len(next(iter(batch.values()))),
        activations=memory.peak + inputs,
        with_gradients=memory.peak_with_gradients + inputs,
        with_outside=memory.peak_with_outside + inputs,
        weight_casts=memory.weight_casts,
    )
