"""Global batch: gathers rows of all ranks, with exact gradients, to compare examples."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class GlobalRows:
    """The rows of all ranks, in rank order.

    Attributes:
        rows: One tensor of shape [N, ...] per tensor that was given; gradients flow back to the
            rank that each row came from.
        start: Index of this rank's first row.
    """

    rows: tuple[Tensor, ...]
    start: int


def gather_rows(*tensors: Tensor) -> GlobalRows:
    """Gather every rank's rows on every rank; all ranks call it, with any number of rows.

    On a GPU each call waits for the device once, for the numbers of rows: gather everything in one
    call.

    The backward pass sums the gradients of all ranks for a row. With losses of the own rows against
    the rows of all, the sum over ranks is the loss of the whole batch, and so are its gradients.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return GlobalRows(tensors, 0)
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=tensors[0].device)
    counts[dist.get_rank()] = len(tensors[0])
    dist.all_reduce(counts)
    sizes = counts.tolist()
    gathered = tuple(
        _Gather.apply(rows, sizes)  # type: ignore[no-untyped-call] # torch's own
        for rows in tensors
    )
    return GlobalRows(gathered, sum(sizes[: dist.get_rank()]))


class _Gather(torch.autograd.Function):
    """Concatenates the ranks' rows; backward sums over the ranks and takes the own part."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:  # noqa: ANN401 (torch's own)
        ctx.sizes = sizes
        # Pieces of equal size: the padding to the largest is removed again.
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: len(rows)] = rows
        pieces = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(pieces, padded)
        return torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 (torch's own)
        # Another node of the graph may hold the same tensor, which is summed in place here.
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        rank = dist.get_rank()
        start = sum(ctx.sizes[:rank])
        return total[start : start + ctx.sizes[rank]], None
