"""Reproducibility: every random number is a function of seed, rank and step; no state is kept."""

import hashlib

import torch
from torch import nn

from components.engine.task import Task


def make_deterministic() -> None:
    """Choose reproducible kernels; an operation that has none warns."""
    torch.set_deterministic_debug_mode("warn")
    # Filling fresh memory would cost time at every allocation and serves only to find reads of
    # uninitialised memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def derived_seed(seed: int, *parts: int) -> int:
    """A 63-bit seed that is independent for each combination of parts."""
    text = ":".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seeded_model(task: Task, seed: int) -> nn.Module:
    """The initial model: the same on every rank, and the same as in a single process."""
    torch.manual_seed(seed)
    return task.build_model()


class StepRandomness:
    """The random state of one rank, set anew at every update.

    Resuming at a step and running into it therefore draw the same dropout masks.
    """

    def __init__(self, seed: int, rank: int, device: torch.device) -> None:
        self._seed = seed
        self._rank = rank
        # Not `torch.manual_seed`: in a process without a GPU it formats and keeps a stack trace
        # for each of three kinds of devices, half a millisecond and some memory at every step.
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[device.index or 0])

    def begin(self, step: int) -> None:
        """Set the global generators for one update."""
        seed = derived_seed(self._seed, self._rank, step, 0)
        for generator in self._generators:
            generator.manual_seed(seed)
