"""Precision: number types of forward, backward and reductions.

Weights and optimizer state are always float32. Under FSDP the shards are cast when they are
gathered; elsewhere autocast chooses per operation.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection

COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# The constants of torch.amp.GradScaler.
INITIAL_LOSS_SCALE = 2.0**16
GROWTH_STEPS = 2000
# Ampere; CUDA programming guide, "Compute Capabilities".
TF32_CAPABILITY = (8, 0)


def choose_kernels(training: TrainingSection, device: torch.device) -> None:
    """Apply the settings of the whole process.

    Raises:
        PerennialError: the device has no TF32, or no bfloat16.
    """
    if device.type == "cuda":
        require_types(
            training,
            torch.cuda.get_device_name(device),
            torch.cuda.get_device_capability(device),
            has_bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        )
    elif training.allow_tf32:
        raise PerennialError(
            "training.allow_tf32 = true, but this process runs on a CPU",
            action="remove it, or train on a GPU of the Ampere generation or later",
        )
    torch.backends.cuda.matmul.allow_tf32 = training.allow_tf32
    torch.backends.cudnn.allow_tf32 = training.allow_tf32


def require_types(
    training: TrainingSection, name: str, capability: tuple[int, int], *, has_bf16: bool
) -> None:
    """Check that a GPU multiplies in the types asked for.

    Emulated bfloat16 does not count as `has_bf16`.

    Raises:
        PerennialError: it does not: it would silently be slow, or compute in another type.
    """
    evidence = f"{name} has compute capability {capability[0]}.{capability[1]}; both need 8.0"
    if training.allow_tf32 and capability < TF32_CAPABILITY:
        raise PerennialError(
            "training.allow_tf32 = true, but this GPU has no TF32",
            evidence=evidence,
            action="remove it, or train on a GPU of the Ampere generation or later",
        )
    if training.precision == "bf16" and not has_bf16:
        raise PerennialError(
            "training.precision = 'bf16', but this GPU only emulates bfloat16",
            evidence=evidence,
            action="set training.precision = 'fp16', or train on a GPU of the Ampere generation "
            "or later",
        )


def fsdp_policy(
    training: TrainingSection, *, is_normalization: bool = False
) -> MixedPrecisionPolicy:
    """Return the types of gathered parameters and of the gradients' reduction."""
    dtype = COMPUTE_DTYPES[training.precision]
    if dtype == torch.float32:
        return MixedPrecisionPolicy()
    if is_normalization:
        return MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=dtype)
    # Outputs stay in the short type between blocks; the engine turns the model's own into float32.
    reduced = torch.float32 if training.reduce_precision == "fp32" else dtype
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced)


def computation(training: TrainingSection, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of every forward pass."""
    if training.precision == "fp32" or training.strategy in ("fsdp", "hsdp"):
        return nullcontext()
    return torch.autocast(device.type, dtype=COMPUTE_DTYPES[training.precision])


class LossScale:
    """The factor that keeps float16 gradients away from zero; 1 for other precisions.

    It halves when a gradient overflows, whose update is then left out, and doubles after
    `GROWTH_STEPS` updates without. Every rank sees the same gradient norm, so all agree.
    """

    def __init__(
        self,
        training: TrainingSection,
        value: float = 0.0,
        good_steps: int = 0,
        halvings: int = 0,
    ) -> None:
        self.is_dynamic = training.precision == "fp16"
        self.value = (value or INITIAL_LOSS_SCALE) if self.is_dynamic else 1.0
        self.good_steps = good_steps
        self.halvings = halvings

    def overflowed(self) -> bool:
        """Halve; return False at the minimum: the cause is then not an overflow."""
        if not self.is_dynamic or self.value <= 1.0:
            return False
        self.value /= 2.0
        self.halvings += 1
        self.good_steps = 0
        return True

    def succeeded(self) -> None:
        """Count an update."""
        if not self.is_dynamic:
            return
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.value *= 2.0
            self.good_steps = 0
