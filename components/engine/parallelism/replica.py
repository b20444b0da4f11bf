"""Replica: a model of which every process has a whole copy, with the same gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from components.engine.scalars import Scalar, unpacked, vector


class Replica(DistributedDataParallel):
    """DDP that adds up a few numbers along with the gradients.

    They travel in a bucket, as the gradient of a parameter that the model does not have. A
    reduction of their own is small, but a moment at which the faster process waits.

    Args:
        model: On its device.
        num_passengers: How many numbers travel.
    """

    def __init__(self, model: nn.Module, num_passengers: int) -> None:
        device = next(model.parameters()).device
        carrier = nn.Parameter(torch.zeros(num_passengers, device=device))
        model.register_parameter("passengers", carrier)
        # Buffers are synchronised by `synchronize_buffers`, the same way for every strategy.
        super().__init__(model, forward_sync_buffers=False)
        # DDP knows it now; nobody who walks over the model shall meet it.
        del model._parameters["passengers"]
        self._carrier = [carrier]  # in a list, where no module looks for parameters

    def backward(self, objective: Tensor, gradient: Tensor, passengers: Sequence[Scalar]) -> None:
        """Like `torch.autograd.backward`, for a pass whose gradients are reduced.

        Args:
            objective: A number.
            gradient: Of whatever follows with respect to it.
            passengers: As many as promised.
        """
        (carrier,) = self._carrier
        # DDP divides by the number of processes.
        sums = vector(passengers, carrier.device) * self.process_group.size()
        torch.autograd.backward([objective, carrier], [gradient, sums.to(carrier.dtype)])

    def arrived(self) -> list[Scalar]:
        """The sums of the passengers over all processes, in float32; once after each `backward`."""
        (carrier,) = self._carrier
        sums, carrier.grad = carrier.grad, None
        if sums is None:
            raise RuntimeError("backward() comes first")
        return unpacked(sums)
