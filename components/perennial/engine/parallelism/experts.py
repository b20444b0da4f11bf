"""Experts: divides experts over processes and routes tokens to them and back."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.parallelism.exchange import all_to_all, uncompiled, with_scaled_gradient
from perennial.engine.parallelism.plan import matching
from perennial.engine.task import ParallelPlan


def share_experts(
    model: nn.Module, plan: ParallelPlan, owner: str, mesh: DeviceMesh
) -> list[nn.Module]:
    """Divide the experts over processes and send tokens to them, in place.

    Returns: The modules that hold experts.

    Raises:
        BadTaskError: the plan names modules that are not there.
        PerennialError: the number of experts is not divisible by the group's size.
    """
    modules = []
    for name, module in matching(model, plan.experts, owner):
        for own_name, weight in list(module.named_parameters(recurse=False)):
            if len(weight) % mesh.size():
                raise PerennialError(
                    f"the number of experts of {name} ({len(weight)}) is not divisible by "
                    f"{mesh.size()}",
                    evidence=f"training.parallelism.expert = {mesh.size()}",
                    action="choose a divisor of the number of experts",
                )
            # Every process has the same initial weights: none needs to be sent.
            shard = distribute_tensor(weight, mesh, [Shard(0)], src_data_rank=None)
            module.register_parameter(own_name, nn.Parameter(shard, weight.requires_grad))
        exchange = _Exchange(name, owner, mesh.get_group())
        module.register_forward_pre_hook(uncompiled(exchange.send))
        module.register_forward_hook(uncompiled(exchange.bring_back))
        modules.append(module)
    return modules


def own_experts(weight: Tensor) -> Tensor:
    """Return this process's experts of a weight whose first dimension is the expert."""
    if not isinstance(weight, DTensor):
        return weight
    # They see the tokens of the whole expert group, and so add its gradients up; the engine counts
    # on averages over all processes with different tokens.
    return with_scaled_gradient(weight.to_local(), 1 / weight.device_mesh.size())


class _Exchange:
    """Sends each token to the process of its expert, and the results back."""

    def __init__(self, name: str, owner: str, group: dist.ProcessGroup) -> None:
        self._name, self._owner = name, owner
        self._group, self._size = group, dist.get_world_size(group)
        self._sent: list[int] = []
        self._received: list[int] = []
        self._order = torch.empty(0, dtype=torch.long)

    def send(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Tokens sorted by expert, of all experts → of all processes, sorted by own expert."""
        if len(inputs) != 2:
            raise BadTaskError(
                f"{self._name} of {self._owner} must be called with tokens and counts",
                evidence=f"it was called with {len(inputs)} arguments",
                action="see `experts` in components/perennial/engine/parallelism/plan.py",
            )
        tokens, counts = inputs
        here = torch.empty_like(counts)
        dist.all_to_all_single(here, counts, group=self._group)
        here = here.view(self._size, -1)  # [process, own expert]
        # Split sizes have to be on the host, so a GPU is waited for here.
        self._sent = counts.view(self._size, -1).sum(1).tolist()
        self._received = here.sum(1).tolist()
        arrived = all_to_all(tokens, self._sent, self._received, self._group)
        own = torch.arange(here.shape[1], device=here.device).repeat(self._size)
        self._order = own.repeat_interleave(here.flatten()).argsort(stable=True)
        return arrived[self._order], here.sum(0)

    def bring_back(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        """Send the experts' outputs back to where the tokens came from."""
        returned = output[self._order.argsort()]
        return all_to_all(returned, self._received, self._sent, self._group)
