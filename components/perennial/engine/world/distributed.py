"""Distributed: this process's rank and device, and reductions over all processes.

Scalars are the few numbers that every update measures. On a CPU they are Python's own, whose
arithmetic takes a hundredth of a tensor's. On a GPU they stay there, for reading one waits for all
the work before it.
"""

import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce
from types import FrameType
from typing import TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

from perennial.contracts.environment import RENDEZVOUS
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import TrainedPart
from perennial.engine.config.training import TrainingSection
from perennial.engine.world.layout import DIMENSIONS, Layout

T = TypeVar("T")
# Far beyond any step; the longer wait for prepared data has a group of its own.
COLLECTIVE_TIMEOUT = timedelta(hours=1)
_HALF_BITS = 32
ASK_SECONDS = 0.05  # twice this is little of the time that a preempted machine has left


Scalar: TypeAlias = Tensor | float


def scalar(value: Tensor) -> Scalar:
    """Convert a tensor of one number to a scalar, in float64, detached."""
    return value.item() if value.device.type == "cpu" else value.detach().double()


def vector(values: Sequence[Scalar], device: torch.device) -> Tensor:
    """Stack scalars into one tensor on a device, in float64."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=torch.float64)
    # Python's own are filled in there: a copy from the host would wait.
    return torch.stack(
        [
            each.double()
            if isinstance(each, Tensor)
            else torch.full((), each, dtype=torch.float64, device=device)
            for each in values
        ]
    )


def unpacked(values: Tensor) -> list[Scalar]:
    """Split a tensor of a few numbers into scalars."""
    return values.tolist() if values.device.type == "cpu" else list(values.double().unbind())


def read(values: Sequence[Scalar]) -> list[float]:
    """Convert scalars to Python's numbers; waits for their device once."""
    if values and isinstance(values[0], Tensor):
        return torch.stack([torch.as_tensor(each) for each in values]).tolist()
    return [float(each) for each in values]


@dataclass(frozen=True)
class World:
    """This process and the process group.

    Attributes:
        arranged: The mesh of processes; None until `arrange` was called.
    """

    rank: int
    local_rank: int
    size: int
    device: torch.device
    arranged: Layout | None = None

    @classmethod
    def join(cls) -> "World":
        """Join the group that the environment describes, as torchrun does: NCCL on GPUs, else gloo.

        The ranks rendezvous at torchrun's address, or by the file of a launcher on this machine.

        Raises:
            PerennialError: there are GPUs, but not one for each process.
        """
        local_rank = int(os.environ["LOCAL_RANK"])
        num_devices, num_ranks = torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])
        if 0 < num_devices < num_ranks:
            raise PerennialError(
                f"{num_ranks} processes cannot share {num_devices} GPUs",
                action=f"set resources.num_processes = {num_devices}, or CUDA_VISIBLE_DEVICES= to "
                "train on the CPU",
            )
        device, backend = torch.device("cpu"), "gloo"
        if num_devices:
            # gloo as well, because some tensors stay on the host, such as requests to stop.
            device, backend = torch.device("cuda", local_rank), "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(device)
        size, file = int(os.environ["WORLD_SIZE"]), os.environ.get(RENDEZVOUS)
        dist.init_process_group(
            backend,
            # On one machine ranks join by a file, so that no port has to be free.
            store=FileStore(file, size) if file else None,
            rank=rank_of_this_process(),
            world_size=size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        return cls(dist.get_rank(), local_rank, dist.get_world_size(), device)

    def arrange(self, training: TrainingSection) -> "World":
        """Return this world with the contract's layout of processes.

        Raises:
            PerennialError: the dimensions do not multiply to the number of processes.
        """
        return replace(self, arranged=Layout.of(training, self.size, self.device))

    def describe_part(self, section: TrainingSection) -> TrainedPart:
        """Return how this world divides a training, from its first step on."""
        is_gpu = self.device.type == "cuda"
        return TrainedPart(
            from_step=0,
            processes=self.size,
            threads=torch.get_num_threads(),
            strategy=section.strategy,
            micro_batch_size=section.micro_batch_size,
            device=torch.cuda.get_device_name(self.device) if is_gpu else "CPU",
        )

    @property
    def layout(self) -> Layout:
        """Return the mesh of processes."""
        if self.arranged is None:
            raise RuntimeError("World.arrange() comes before the layout is used")
        return self.arranged

    @property
    def data_rank(self) -> int:
        """Return which part of every global batch this process computes."""
        return self.layout.data_rank

    @property
    def data_size(self) -> int:
        """Return into how many parts every global batch is divided."""
        return self.layout.data_size

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank, which logs and writes for all."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum element-wise over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def sum_scalars(self, values: Sequence[Scalar]) -> list[Scalar]:
        """Return the sums over all ranks."""
        if self.size == 1:
            return list(values)
        return unpacked(self.sum(vector(values, self.device)))

    def sum_data(self, value: float) -> float:
        """Return the sum over the data ranks; those that hold the same rows have equal values."""
        (found,) = read(self.sum_scalars([value]))
        return found * self.data_size / self.size

    def sum_in_order(self, values: Sequence[Scalar]) -> list[Scalar]:
        """Return the sums over all ranks, each added up in the order of the ranks.

        Where a reduction begins to add depends on the place of a number in the tensor: a resumed
        training, which adds up other intervals, would round in another way.
        """
        if self.size == 1:
            return list(values)
        own = vector(values, self.device)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(gathered, own)
        return unpacked(reduce(torch.add, gathered))

    def from_first(self, value: T | None, group: dist.ProcessGroup | None = None) -> T:
        """Return the first rank's value on every rank."""
        holder = [value]
        if self.size > 1:
            dist.broadcast_object_list(holder, src=0, group=group)
        return cast("T", holder[0])

    def to_first(self, value: T) -> list[T] | None:
        """Return every rank's value in rank order on the first rank; None elsewhere."""
        if self.size == 1:
            return [value]
        gathered: list[T] | None = [value] * self.size if self.is_first else None
        dist.gather_object(value, gathered, dst=0)
        return gathered

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()


def rank_of_this_process() -> int:
    """Return the rank from the environment, available before the group is joined."""
    return int(os.environ["RANK"])


def machine_of_this_process() -> int:
    """Return the number of this machine in this attempt, from torchrun's environment."""
    return int(os.environ.get("GROUP_RANK", "0"))


def synchronize_buffers(model: nn.Module, world: World) -> None:
    """Give every rank the mean of all ranks' buffers (running statistics), in one collective.

    Done before each update, each evaluation and each checkpoint, so that the buffers depend neither
    on the strategy nor on when a checkpoint was taken. Summed in float64, where the mean of equal
    float32 numbers is that number: repeating it changes nothing. Equal integers, such as the
    multipliers of a hash, stay as they are. Buffers that no checkpoint holds are derived, so equal
    anyway. Stages of a pipeline have their own buffers and synchronise separately.
    """
    dimensions = [name for name in DIMENSIONS if name != "pipeline" and world.layout.size(name) > 1]
    stored = list(stored_buffers(model)) if dimensions else []
    if not stored:
        return
    buffers = [torch.view_as_real(each) if each.is_complex() else each for each in stored]
    exact = [_as_exact(buffer) for buffer in buffers]
    sums = torch.cat([each.flatten() for each in exact])
    for name in dimensions:
        dist.all_reduce(sums, group=world.layout.mesh.get_group(name))
    means = sums / math.prod(map(world.layout.size, dimensions))
    start = 0
    for buffer, each in zip(buffers, exact, strict=True):
        stop = start + each.numel()
        _set_exact(buffer, means[start:stop].view(each.shape))
        start = stop


def _as_exact(buffer: Tensor) -> Tensor:
    """Convert a buffer to float64, which holds 53 bits: int64 to its upper and lower 32."""
    if buffer.dtype != torch.int64:
        return buffer.double()
    return torch.stack([buffer >> _HALF_BITS, buffer & (2**_HALF_BITS - 1)]).double()


def _set_exact(buffer: Tensor, mean: Tensor) -> None:
    """Set a buffer to a mean of what `_as_exact` returns."""
    if buffer.dtype == torch.int64:
        upper, lower = mean
        whole = upper.floor()
        rest = (upper - whole) * 2**_HALF_BITS + lower
        mean = (whole.long() << _HALF_BITS) + rest.long()
    buffer.copy_(mean)


def stored_buffers(model: nn.Module) -> Iterator[Tensor]:
    """Return the buffers that a checkpoint contains."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer


class StopSignal:
    """SIGTERM (or SIGINT) on any rank, agreed on by all ranks between two updates.

    Ranks ask each other beside an update, so that nobody waits, and about every `ASK_SECONDS`:
    asking in every update costs those of 3 ms several percent.
    """

    def __init__(self) -> None:
        self._requested_here = False
        self._requested = False
        self._interval = 1  # updates from one question to the next; the same on all ranks
        self._updates = 0
        self._asked_at = time.monotonic()
        self._answers: tuple[Tensor, dist.Work | None] | None = None

    def listen(self) -> None:
        """Install the signal handlers."""
        signal.signal(signal.SIGTERM, self._request)
        signal.signal(signal.SIGINT, self._request)

    def ask(self, world: World) -> None:
        """Start to ask all ranks, where it is due; all of them call it before each update."""
        self._updates += 1
        if self._updates < self._interval:
            return
        now = time.monotonic()
        # The mean duration over the ranks, so that all of them come to the same interval.
        own = [float(self._requested_here), (now - self._asked_at) / self._updates / world.size]
        values = torch.tensor(own, dtype=torch.float64)
        # The tensor is on the host, so gloo reduces it: reading the answer does not wait for a GPU.
        work = dist.all_reduce(values, async_op=True) if world.size > 1 else None
        self._answers = values, work
        self._asked_at, self._updates = now, 0

    def is_requested(self) -> bool:
        """Whether a rank was told to stop; called by all ranks after each update."""
        if self._answers is not None:
            values, work = self._answers
            if work is not None:
                work.wait()
            requests, seconds_per_update = values.tolist()
            self._interval = max(1, int(ASK_SECONDS / seconds_per_update))
            self._requested = self._requested or requests > 0
            self._answers = None
        return self._requested

    def _request(self, signal_number: int, frame: FrameType | None) -> None:
        self._requested_here = True


def describe_device() -> str:
    """Return the devices that a training on this machine uses, for people."""
    count = torch.cuda.device_count()
    if count:
        return f"{count} x {torch.cuda.get_device_name(0)}"
    return f"CPU, {torch.get_num_threads()} threads a process (no GPU found)"
