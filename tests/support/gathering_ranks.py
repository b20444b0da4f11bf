"""What ranks do in the tests of agreement beside training: gather rows, vote."""

from typing import ClassVar

import torch
import torch.distributed as dist
from torch.nn import functional

from perennial.engine.data.global_batch import gather_rows
from perennial.engine.objective import weighted_losses
from perennial.engine.task import LABEL, WEIGHT, Task
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


class InBatch(Task):
    """Each row against the partners of all rows, by their label's temperature."""

    kind = "statistic"
    metrics: ClassVar = {"mean_loss": "minimize"}
    needs_whole_batch = True

    def losses(self, output, batch):
        scores = output[:, 0] @ output[:, 1].T / batch[LABEL][:, None]
        right = torch.arange(len(scores))
        return functional.cross_entropy(scores, right, reduction="none")

    encode = build_model = losses


def compare_a_batch_of_all_ranks() -> int:
    """Losses and gradients are those of one process; a row of weight 0 is compared with nothing."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(3)
    output = torch.randn(6, 2, 4, generator=generator)
    batch = {
        LABEL: 1 + torch.rand(6, generator=generator),
        WEIGHT: torch.tensor([1, 2, 1, 0.5, 3, 0]),
    }
    task = InBatch(InBatch.Options(), None)

    whole = output[:5].clone().requires_grad_()
    wanted = task.losses(whole, {LABEL: batch[LABEL][:5]}) * batch[WEIGHT][:5]
    wanted.sum().backward()

    part = slice(0, 2) if rank == 0 else slice(2, 6)
    own = output[part].clone().requires_grad_()
    losses = weighted_losses(task, own, {name: each[part] for name, each in batch.items()})
    losses.sum().backward()
    expected = torch.cat([wanted.detach(), torch.zeros(1)])[part]
    torch.testing.assert_close(losses.detach(), expected)
    torch.testing.assert_close(own.grad, torch.cat([whole.grad, torch.zeros(1, 2, 4)])[part])

    # A batch of fewer rows than processes: the one without any has a row of weight 0, the other no
    # weights at all.
    labels = {LABEL: batch[LABEL][:5]}
    alone = task.losses(output[:5], labels)
    mine = labels if rank == 0 else {LABEL: batch[LABEL][5:], WEIGHT: torch.zeros(1)}
    found = weighted_losses(task, output[:5] if rank == 0 else output[5:], mine)
    torch.testing.assert_close(found, alone if rank == 0 else torch.zeros(1))
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
