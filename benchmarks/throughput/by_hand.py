"""Hand-written loops: the stock one that tutorials show, and the best one we can write."""

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from typing_extensions import override

from benchmarks.throughput.cells import (
    LEARNING_RATE,
    LOG_EVERY,
    MAX_NORM,
    SEED,
    Cell,
    Subject,
    loss_of,
)
from benchmarks.throughput.contender import Contender, Place


def wrapped_model(
    cell: Cell, subject: Subject, device: torch.device, *, channels_last: bool = False
) -> nn.Module:
    """The cell's model, seeded, and as the strategy wants it."""
    torch.manual_seed(SEED)
    model = subject.build().to(device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its stub lacks it
    if cell.compiled:
        for block in subject.blocks(model):
            block.compile()
    if cell.strategy == "fsdp":
        policy = MixedPrecisionPolicy()
        if cell.precision == "bf16":
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in subject.blocks(model):
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif cell.strategy == "ddp":
        model = DistributedDataParallel(model)
    return model


def autocast_of(cell: Cell, device: torch.device) -> AbstractContextManager[object]:
    """Short floats where FSDP does not cast by itself."""
    if cell.precision == "bf16" and cell.strategy != "fsdp":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def endless(loader: Iterable[list[Tensor]]) -> Iterator[list[Tensor]]:
    """Epoch after epoch."""
    while True:
        yield from loader


class StockLoop(Contender):
    """A `DataLoader` over single rows, AdamW as it comes, `clip_grad_norm_`."""

    name = "stock loop"

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        super().__init__(cell, subject, place)
        self._model = wrapped_model(cell, subject, place.device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)
        data = TensorDataset(subject.inputs, subject.labels)
        sampler: DistributedSampler[tuple[Tensor, ...]] | None = None
        if place.size > 1:
            sampler = DistributedSampler(data, place.size, place.rank)
        self._loader = DataLoader(
            data, subject.batch_size // place.size, shuffle=sampler is None, sampler=sampler,
            drop_last=True,
        )  # fmt: skip
        self._batches = endless(self._loader)
        self._step = 0
        self.logged: list[tuple[float, float, float]] = []

    @override
    def run(self, steps: int) -> None:
        for _ in range(steps):
            inputs, labels = (each.to(self.place.device) for each in next(self._batches))
            with autocast_of(self.cell, self.place.device):
                loss = loss_of(self._model(inputs), labels)
            self._optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self._model.parameters(), MAX_NORM)
            self._optimizer.step()
            self._step += 1
            if self._step % LOG_EVERY == 0:
                norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
                self.logged.append((loss.item(), norm.item(), LEARNING_RATE))


class BestLoop(Contender):
    """Vectorised gather, fused AdamW, one reduction for the norm, channels last where possible.

    Like Perennial, it spares biases and norms the weight decay.
    On a GPU all rows lie in its memory: batches are gathered there and never travel.
    """

    name = "best hand-written loop"

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        super().__init__(cell, subject, place)
        channels_last = subject.convolves and cell.strategy != "fsdp"
        self._model = wrapped_model(cell, subject, place.device, channels_last=channels_last)
        self._parameters = list(self._model.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [each for each in self._parameters if each.ndim > 1]},
            {"params": [each for each in self._parameters if each.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True)
        self._inputs = subject.inputs.to(place.device)
        self._labels = subject.labels.to(place.device)
        self._generator = torch.Generator(place.device).manual_seed(SEED)
        self._order = self._permutation()
        self._position = 0
        self._step = 0
        self.logged: list[tuple[float, float, float, float]] = []

    @override
    def run(self, steps: int) -> None:
        size, world = self.subject.batch_size, self.place.size
        share = size // world
        for _ in range(steps):
            start = time.monotonic()
            if self._position + size > len(self._order):
                self._order = self._permutation()
                self._position = 0
            first = self._position + self.place.rank * share
            rows = self._order[first : first + share]
            inputs, labels = self._inputs[rows], self._labels[rows]
            self._position += size
            waited = time.monotonic() - start
            with autocast_of(self.cell, self.place.device):
                loss = loss_of(self._model(inputs), labels)
            loss.backward()
            norm = self._clip()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._step += 1
            if self._step % LOG_EVERY == 0:
                self.logged.append((loss.item(), norm.item(), LEARNING_RATE, waited))

    def _permutation(self) -> Tensor:
        rows = len(self.subject.labels)
        return torch.randperm(rows, generator=self._generator, device=self.place.device)

    def _clip(self) -> Tensor:
        gradients = [
            parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
            for parameter in self._parameters
            if parameter.grad is not None
        ]
        squares = torch.stack(torch._foreach_norm(gradients)).square().sum()
        if self.cell.strategy == "fsdp" and self.place.size > 1:
            dist.all_reduce(squares)
        norm = squares.sqrt()
        torch._foreach_mul_(gradients, torch.clamp(MAX_NORM / (norm + 1e-6), max=1.0))
        return norm
