"""Digests: compare sets of tensors bit for bit without keeping them."""

import hashlib

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from perennial.engine.task import Batch, inputs_of


def digest_of(tensors: Batch) -> str:
    """Return a digest of names, shapes and every bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if is_lazy(tensor):
            continue  # has no content before the first forward pass
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def digests_of(batch: Batch) -> list[str]:
    """Return a digest of the inputs of each example."""
    inputs = sorted(inputs_of(batch).items())
    rows = len(inputs[0][1])
    return [
        hashlib.sha256(b"".join(_bytes_of(tensor[row]) for _, tensor in inputs)).hexdigest()
        for row in range(rows)
    ]


def _bytes_of(tensor: Tensor) -> bytes:
    if not tensor.numel():
        return b""  # tensors without columns, as of a table without categories, have no bytes
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
