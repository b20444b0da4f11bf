"""Out of memory: whether a training may go on with smaller passes, which change rounding alone.

The process that runs out of memory ends, as after any exception, and with it the attempt: others
that wait in a collective are ended by the launcher. The next attempt has smaller passes from the
start, so that all ranks agree on them. A rank that went on by itself would leave the others in a
collective that it never joins, and the allocator with the pieces of the failed pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from perennial.contracts.errors import TrainingFailedError
from perennial.contracts.training import Halving
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.evaluation.scoring import OUT_OF_CPU_MEMORY
from perennial.engine.parallelism.parallelize import unwrapped
from perennial.engine.task import Task
from perennial.engine.world.distributed import World


class PassOutOfMemoryError(TrainingFailedError):
    """A forward or backward pass ran out of memory.

    The obstacle is why smaller passes would not give the same training; empty if they would.
    """

    def __init__(self, plan: BatchPlan, message: str, obstacle: str) -> None:
        self._plan = plan
        self.obstacle = obstacle
        super().__init__(
            f"out of memory in a pass of {plan.pass_rows} row{'s' if plan.pass_rows > 1 else ''}",
            evidence=f"{message}; {plan.describe()}"
            + (f"; passes are not halved, because {obstacle}" if obstacle else ""),
            action="lower training.micro_batch_size where the task allows it, set "
            'training.memory.activation_checkpointing = "full", training.precision = "bf16" or '
            'strategy = "fsdp" on more processes',
        )

    def halving(self, step: int, rank: int) -> Halving | None:
        """Return the smaller passes with which to go on; None where they are not the same."""
        rows = self._plan.pass_rows
        if self.obstacle:
            return None
        return Halving(step=step, rank=rank, rows=rows, next_rows=-(-rows // 2))


@contextmanager
def naming_out_of_memory(
    task: Task, model: nn.Module, section: TrainingSection, world: World
) -> Iterator[None]:
    """Raise `PassOutOfMemoryError` when the passes in the block run out of memory."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        plan = BatchPlan(section.global_batch_size, section.micro_batch_size, world.data_size)
        obstacle = find_obstacle(task, model, plan, section)
        raise PassOutOfMemoryError(plan, str(error), obstacle) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator of a device or of the host failed."""
    is_typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_typed or OUT_OF_CPU_MEMORY in str(error)


def find_obstacle(task: Task, model: nn.Module, plan: BatchPlan, section: TrainingSection) -> str:
    """Return why smaller passes would not give the same training; empty if they would."""
    if section.memory.on_out_of_memory == "fail":
        return 'training.memory.on_out_of_memory = "fail"'
    if plan.pass_rows == 1:
        return "a pass of one row is the smallest"
    if task.needs_whole_batch:
        return f"the loss of {type(task).__name__} compares the rows of a pass"
    norms = [
        name
        for name, each in unwrapped(model).named_modules()
        # One that is frozen is in evaluation mode: its statistics depend on no pass.
        if isinstance(each, _BatchNorm) and each.training
    ]
    if norms:
        return (
            f"the batch normalisation {norms[0]} takes its statistics from the rows of a pass "
            "(group or layer normalisation does not)"
        )
    return ""
