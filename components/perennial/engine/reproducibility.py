"""Reproducibility: every random number is a function of seed, rank and step; no state is kept."""

import hashlib
import random

import numpy as np
import torch
from torch import nn

from perennial.engine.task import Task


def make_deterministic(*, enabled: bool) -> None:
    """Choose reproducible kernels, of which an operation that has none warns; or the fastest."""
    torch.set_deterministic_debug_mode("warn" if enabled else "default")
    # The fastest convolution is found by trying, and another one may win the next time.
    torch.backends.cudnn.benchmark = not enabled
    # Filling fresh memory would cost time at every allocation and serves only to find reads of
    # uninitialised memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def derived_seed(seed: int, *parts: int) -> int:
    """Derive a 63-bit seed that is independent for each combination of parts."""
    text = ":".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seeded_model(task: Task, seed: int) -> nn.Module:
    """Build the initial model: the same on every rank, and the same as in a single process."""
    torch.manual_seed(seed)
    _seed_libraries(derived_seed(seed))
    return task.build_model()


class StepRandomness:
    """The random state of one rank, set again at every update.

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
        _seed_libraries(seed)


def _seed_libraries(seed: int) -> None:
    """Set the generators of Python and NumPy, from which a task's code may draw, too."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # the largest that it takes
