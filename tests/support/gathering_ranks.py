"""What ranks do in the tests of agreement beside training: gather rows, vote."""

import torch
import torch.distributed as dist

from perennial.engine.data.global_batch import gather_rows
from perennial.engine.world.distributed import StopSignal, World


def gather_beside_a_shared_gradient() -> int:
    """An addition gives both of its inputs the same gradient tensor; 0 when both are right."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = torch.ones(2 + rank, 3, requires_grad=True)
    counted = torch.ones(len(rows))
    leaf = torch.zeros(5, 3, requires_grad=True)
    beside = leaf * 2.0  # made before the rows are gathered, so its backward pass comes after
    gathered = gather_rows(rows, counted)
    weights = torch.full((5, 3), 1.0 + rank)
    ((gathered.rows[0] + beside) * weights).sum().backward()
    assert torch.equal(gathered.rows[1], torch.ones(5))
    assert gathered.start == 2 * rank
    assert torch.equal(leaf.grad, 2.0 * weights)
    assert torch.equal(rows.grad, torch.full_like(rows, 3.0))
    dist.barrier()
    return 0


def agree_to_stop() -> int:
    """Rank 1 gets SIGTERM before the third update, after which both know."""
    world = World.join()
    stop = StopSignal()
    heard = []
    for call in range(1, 6):
        if call == 3 and world.rank == 1:
            stop._requested_here = True
        stop.ask(world)
        heard.append(stop.is_requested())
    assert heard == [False, False, True, True, True]
    world.barrier()
    return 0
