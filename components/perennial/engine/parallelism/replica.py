"""Replica: a model of which every process has a whole copy, with the same gradients."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.parallel import DistributedDataParallel

from perennial.engine.world.scalars import Scalar, unpacked, vector


class Replica(DistributedDataParallel):
    """DDP that adds up a few numbers along with the gradients.

    They travel in a bucket, as the gradient of a parameter that the model does not have. A
    reduction of their own is small, but a moment at which the faster process waits.

    Args:
        model: On its device.
        num_scalars: How many numbers travel.
        has_idle: Whether some parameters get no gradient. DDP then looks for them in every update,
            which takes a while, and leaves them as they are.
    """

    def __init__(self, model: nn.Module, num_scalars: int, *, has_idle: bool = False) -> None:
        device = next(model.parameters()).device
        carrier = nn.Parameter(torch.zeros(num_scalars, device=device))
        model.register_parameter("extra_scalars", carrier)
        # Buffers are synchronised by `synchronize_buffers`, the same way for every strategy.
        super().__init__(model, forward_sync_buffers=False, find_unused_parameters=has_idle)
        # DDP knows it now; nobody who walks over the model shall meet it.
        del model._parameters["extra_scalars"]
        self._carrier = [carrier]  # in a list, where no module looks for parameters
        if has_idle:
            # What DDP looks for in the graph of the output, it must find there.
            def carry(module: nn.Module, given: object, output: Tensor) -> Tensor:
                carried: Tensor = _Carried.apply(output, carrier)  # type: ignore[no-untyped-call]
                return carried

            model.register_forward_hook(carry)

    def backward(
        self, objective: Tensor, gradient: Tensor, extra_scalars: Sequence[Scalar]
    ) -> None:
        """Like `torch.autograd.backward`, for a pass whose gradients are reduced.

        Args:
            objective: A number.
            gradient: Of whatever follows with respect to it.
            extra_scalars: As many as promised.
        """
        (carrier,) = self._carrier
        # DDP divides by the number of processes.
        sums = vector(extra_scalars, carrier.device) * self.process_group.size()
        torch.autograd.backward([objective, carrier], [gradient, sums.to(carrier.dtype)])

    def arrived(self) -> list[Scalar]:
        """The sums of the extra scalars over all processes, in float32; once per `backward`."""
        (carrier,) = self._carrier
        sums, carrier.grad = carrier.grad, None
        if sums is None:
            raise RuntimeError("backward() comes first")
        return unpacked(sums)


class _Carried(torch.autograd.Function):
    """The output as it is, with the carrier of the scalars in its graph."""

    @staticmethod
    def forward(ctx: FunctionCtx, output: Tensor, carrier: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def leaves_of(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that a backward pass from this one gives gradients to."""
    seen, waiting = set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [parent for parent, _ in node.next_functions]
