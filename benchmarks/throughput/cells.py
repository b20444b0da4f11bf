"""Cells: what is trained, on how many processes, and how; the same for every contender."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from perennial.tasks.decoder import Decoder, DecoderOptions

LEARNING_RATE = 3e-4
MAX_NORM = 1.0
LOG_EVERY = 10
SEED = 1


@dataclass(frozen=True)
class Cell:
    """One comparison.

    Attributes:
        model: What is trained.
        processes: How many train together.
        strategy: How; `single`, `ddp` or `fsdp`.
        precision: `fp32` or `bf16`.
        steps: Updates of each contender in each round.
        compiled: Compile each block.
        settings: Of the training section, for Perennial alone.
    """

    model: str
    processes: int
    strategy: Literal["single", "ddp", "fsdp"]
    precision: Literal["fp32", "bf16"]
    steps: int
    compiled: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How the results call it."""
        return f"{self.model} {self.strategy} x{self.processes} {self.precision}"


@dataclass(frozen=True)
class Subject:
    """A model and the data that it is trained on.

    Attributes:
        build: Makes the model; seed before calling it.
        inputs: All rows, shape [N, ...].
        labels: Shape [N] or [N, T].
        batch_size: Rows of an update, over all processes.
        blocks: The modules that FSDP shards one by one.
        input_name: Of the model's argument.
        convolves: Whether channels-last weights are faster.
    """

    build: Callable[[], nn.Module]
    inputs: Tensor
    labels: Tensor
    batch_size: int
    blocks: Callable[[nn.Module], list[nn.Module]]
    input_name: str = "inputs"
    convolves: bool = False


CELLS = [
    Cell("cnn", 1, "single", "fp32", 200),
    Cell("decoder", 1, "single", "fp32", 8),
    Cell("tabular", 1, "single", "fp32", 60),
    Cell("decoder", 1, "single", "bf16", 8),
    Cell("tabular", 1, "single", "bf16", 60),
    Cell("cnn", 2, "ddp", "fp32", 100),
    Cell("decoder", 2, "ddp", "fp32", 8),
    Cell("tabular", 2, "ddp", "fp32", 60),
    Cell("cnn", 2, "fsdp", "fp32", 100),
    Cell("decoder", 2, "fsdp", "fp32", 8),
    Cell("tabular", 2, "fsdp", "fp32", 60),
]


class SmallConvNet(nn.Module):
    """Two convolutions and a linear layer, on pictures whose channels come last."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
                nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
            ]
        )
        self.head = nn.Linear(32 * 8 * 8, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 8, 8, 1] → [B, 10]."""
        hidden = inputs.permute(0, 3, 1, 2)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.flatten(1))


class Perceptron(nn.Module):
    """50 numbers through two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(50, 256), nn.ReLU()),
                nn.Sequential(nn.Linear(256, 256), nn.ReLU()),
            ]
        )
        self.head = nn.Linear(256, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 50] → [B, 2]."""
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def subject_of(model: str) -> Subject:
    """The cell's model and data; only the digits are real, for speed does not depend on content."""
    random = np.random.default_rng(SEED)
    if model == "cnn":
        digits = load_digits()
        pictures = torch.from_numpy(digits.images[..., None].astype(np.float32) / 16)
        labels = torch.from_numpy(digits.target)
        return Subject(SmallConvNet, pictures, labels, 64, blocks_of, convolves=True)
    if model == "tabular":
        table = torch.from_numpy(random.normal(size=(300_000, 50)).astype(np.float32))
        return Subject(Perceptron, table, (table[:, 0] > 0).long(), 1024, blocks_of)
    options = DecoderOptions(vocab_size=65, context_length=128, layers=4, heads=4, width=128)
    return language(options, rows=4096, batch_size=16)


def language(options: DecoderOptions, *, rows: int, batch_size: int) -> Subject:
    """A decoder, and random tokens of its longest length."""
    length = options.context_length
    random = np.random.default_rng(SEED)
    text = torch.from_numpy(random.integers(0, options.vocab_size, (rows, length + 1)))
    inputs, labels = text[:, :-1].clone(), text[:, 1:].clone()
    return Subject(lambda: Decoder(options), inputs, labels, batch_size, blocks_of, "tokens")


def loss_of(output: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy, over rows and, for text, positions."""
    return functional.cross_entropy(output.float().flatten(0, -2), labels.flatten())


def losses_of(output: Tensor, labels: Tensor) -> Tensor:
    """The same, one per row."""
    if labels.ndim == 1:
        return functional.cross_entropy(output.float(), labels, reduction="none")
    each = functional.cross_entropy(
        output.float().flatten(0, -2), labels.flatten(), reduction="none"
    )
    return each.view(len(labels), -1).mean(dim=1)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The modules of a model's list of blocks."""
    return list(model.get_submodule("blocks").children())
