"""AdamW with 8-bit moments: the only module that imports torchao."""

import importlib
from collections.abc import Callable

import torch

from perennial.contracts.errors import PerennialError


def adamw_8bit_type(*, is_on_gpu: bool) -> type[torch.optim.Optimizer]:
    """Return the optimizer's class; on GPUs, its update is compiled for each shape of parameter.

    Raises:
        PerennialError: torchao is not installed, or does not fit the installed PyTorch.
    """
    try:
        # Loaded here alone: it takes seconds, and is not part of the trainer's own packages.
        module = importlib.import_module("torchao.optim")
    except ImportError as error:
        raise PerennialError(
            "training.optimizer.name = 'adamw8bit' needs torchao, which cannot be imported",
            evidence=str(error),
            action="run `pip install 'perennial[optimizers]'`, also in the trainer's image, or "
            "choose 'adamw' or 'adafactor'",
        ) from error
    kind: type[torch.optim.Optimizer] = module.AdamW8bit
    return kind if is_on_gpu else _not_compiled(kind)


def _not_compiled(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Apply the same update as plain operations.

    Compiling takes a CPU about ten seconds per shape of parameter, and a C++ compiler, for nothing:
    8 bits serve GPUs that are short of memory.
    """

    def step(
        self: torch.optim.Optimizer, closure: Callable[[], float] | None = None
    ) -> float | None:
        with torch.compiler.set_stance("force_eager"):
            return kind.step(self, closure)

    return type("PlainAdamW8bit", (kind,), {"step": step})
