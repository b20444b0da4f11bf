"""Dimensions: sizes of matrices that a GPU's tensor cores compute at a fraction of their speed.

NVIDIA, "Matrix Multiplication Background" (Deep Learning Performance): dimensions should be
multiples of 16 bytes, so of 8 numbers of 16 bits and of 4 of TF32; 64 or more is better still.
"""

from collections.abc import Iterator

import torch
from torch import nn

from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan

# Smaller matrices take too small a share of the time to be worth a change.
RELEVANT_SHARE = 0.01


def alignment(section: TrainingSection, device: torch.device) -> int:
    """Return what dimensions should be multiples of; 1 where no tensor cores are used."""
    if device.type != "cuda":
        return 1
    if section.precision != "fp32":
        return 8
    return 4 if section.allow_tf32 else 1


def find_odd_dimensions(
    model: nn.Module, section: TrainingSection, device: torch.device, plan: BatchPlan
) -> tuple[str, ...]:
    """Return hints on dimensions that are no multiples of what the device computes with."""
    multiple = alignment(section, device)
    if multiple == 1:
        return ()
    hints = [
        f"{name} is {rows:,} x {columns:,}: {_advice(rows, columns, multiple)}"
        for name, rows, columns in large_matrices(model)
        if rows % multiple or columns % multiple
    ]
    if plan.pass_rows % multiple:
        hints.append(
            f"passes have up to {plan.pass_rows} rows: choose training.micro_batch_size and "
            f"global_batch_size so that they have a multiple of {multiple}"
        )
    return tuple(hints)


def large_matrices(model: nn.Module) -> Iterator[tuple[str, int, int]]:
    """Yield name, rows and columns of the matrices that have a relevant share of the weights."""
    total = sum(each.numel() for each in model.parameters())
    for name, each in model.named_parameters():
        if each.ndim >= 2 and each.numel() >= RELEVANT_SHARE * total:
            yield name.removeprefix("module."), each.shape[0], each.shape[1]


def _advice(rows: int, columns: int, multiple: int) -> str:
    odd = [size for size in dict.fromkeys((rows, columns)) if size % multiple]
    nearest = ", ".join(f"{-(-size // multiple) * multiple:,} for {size:,}" for size in odd)
    return f"tensor cores need multiples of {multiple}; the next are {nearest}"
