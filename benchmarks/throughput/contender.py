"""Contender: something that can train a cell's model for some updates."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch

from benchmarks.throughput.cells import Cell, Subject
from perennial.engine.world.distributed import World


@dataclass(frozen=True)
class Place:
    """Which process this is.

    Attributes:
        rank: Among the processes.
        size: Their number.
        device: Where it computes.
    """

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls) -> Self:
        """Join the group that the environment describes, on a GPU where there is one."""
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        world = World.join()
        return cls(world.rank, world.size, world.device)

    def finish(self) -> None:
        """Wait until the device has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Contender(ABC):
    """Trains with AdamW, clips gradients to a norm of 1 and logs loss, norm and learning rate.

    Args:
        cell: What is compared.
        subject: Model and data.
        place: This process.
    """

    name: str
    """How the results call it."""
    is_reproducible = False
    """Whether it asks for kernels that give the same bits again; others get the fastest."""

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        self.cell = cell
        self.subject = subject
        self.place = place
        self.measured: tuple[float, ...] | None = None
        """Wall and processor seconds of the last run, where it measures itself."""

    @classmethod
    def refusal(cls, cell: Cell) -> str | None:
        """Why it cannot run this cell, in its own words; None when it can."""
        return None

    @abstractmethod
    def run(self, steps: int) -> None:
        """Make so many updates."""

    def choose_kernels(self) -> None:
        """Set what is set for the whole process; called before each of its turns."""
        torch.set_deterministic_debug_mode("warn" if self.is_reproducible else "default")
        torch.backends.cudnn.benchmark = not self.is_reproducible

    def close(self) -> None:
        """End threads and files, and let go of all that holds memory."""
        vars(self).clear()
