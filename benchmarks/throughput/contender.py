"""Contender: something that can train a cell's model for some updates."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from benchmarks.throughput.cells import Cell, Subject


@dataclass(frozen=True)
class Place:
    """Which process this is.

    Attributes:
        rank: Among the processes.
        size: Their number.
    """

    rank: int
    size: int


class Contender(ABC):
    """Trains with AdamW, clips gradients to a norm of 1 and logs loss, norm and learning rate.

    Args:
        cell: What is compared.
        subject: Model and data.
        place: This process.
    """

    name: str
    """How the results call it."""

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        self.cell = cell
        self.subject = subject
        self.place = place
        self.measured: tuple[float, float] | None = None
        """Wall and processor seconds of the last run, where it measures itself."""

    @classmethod
    def refusal(cls, cell: Cell) -> str | None:
        """Why it cannot run this cell, in its own words; None when it can."""
        return None

    @abstractmethod
    def run(self, steps: int) -> None:
        """Make so many updates."""

    def close(self) -> None:
        """End threads and files."""
