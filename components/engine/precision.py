"""Precision: in which types are forward, backward and reductions computed?

Weights and optimizer state are always float32. Under FSDP the shards are cast when they are
gathered; elsewhere autocast chooses per operation.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from components.engine.config import TrainingSection

NORMALIZATION_POLICY = MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.bfloat16)


def fsdp_policy(training: TrainingSection) -> MixedPrecisionPolicy:
    """Types of gathered parameters and of the gradients' reduction."""
    if training.precision == "fp32":
        return MixedPrecisionPolicy()
    # Outputs stay bfloat16 between blocks; the engine turns the model's own into float32.
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def computation(training: TrainingSection, device: torch.device) -> AbstractContextManager[object]:
    """What every forward pass runs in."""
    if training.precision == "fp32" or training.strategy == "fsdp":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
