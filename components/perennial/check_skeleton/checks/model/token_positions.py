"""Token positions: the tokens of a text, the target at each position, and dependencies."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn

from perennial.check_skeleton.free_outputs import compute_output, find_wanted_tokens, is_per_token
from perennial.check_skeleton.subject import Subject, select_head
from perennial.engine.task import LABEL, Batch, inputs_of

# Shuffled tokens agree with their labels about as often as letters do, once in ten to twenty; the
# end of a text may be labelled otherwise than it is padded, which matters in short ones.
AGREEMENT = 0.5
# Of its own size; smaller movements are rounding.
SMALLEST_MOVE = 1e-5
OFFSETS = (1, 0, 2, -1, 3, -2)
# Masked language models hide their target tokens, four in five by one code.
HIDDEN_SHARE = 0.5
MOST_POSITIONS = 24
SHORTEST = 8


@dataclass(frozen=True)
class TargetOffset:
    """The targets of the loss, compared with the tokens that the model receives.

    Attributes:
        tokens: Name of the input with the tokens.
        wanted: The target code at each position, [B, T], -1 where there is none.
        agreement: By offset, the share of targets that equal the token that far ahead.
        is_hidden: Whether the target tokens are hidden by one code.
    """

    tokens: str
    wanted: Tensor
    agreement: dict[int, float]
    is_hidden: bool

    @property
    def offset(self) -> int | None:
        """Distance to the target tokens, ahead; None where they are nowhere."""
        best = max(self.agreement, key=lambda offset: self.agreement[offset])
        return best if self.agreement[best] >= AGREEMENT else None


def find_target_offset(subject: Subject, batch: Batch) -> TargetOffset | str:
    """Return the targets of a batch; or why they cannot be compared with tokens."""
    output = compute_output(subject, batch)
    if not is_per_token(output, batch[LABEL]):
        return "the model's output is not one row of scores per label"
    found = measure_target_offset(find_wanted_tokens(subject.task, output, batch), batch)
    if found is None:
        return "no input has the shape of the labels"
    if found.is_hidden:
        return "the target tokens are hidden from the model"
    return found


def measure_target_offset(wanted: Tensor, batch: Batch) -> TargetOffset | None:
    """Compare targets with the input that contains them most often; None without tokens."""
    found = [
        TargetOffset(name, wanted, measure_agreements(tensor, wanted), _is_hidden(tensor, wanted))
        for name, tensor in inputs_of(batch).items()
        if tensor.shape == wanted.shape and not tensor.is_floating_point()
    ]
    return max(found, key=lambda each: max(each.agreement.values()), default=None)


def measure_agreements(tokens: Tensor, wanted: Tensor) -> dict[int, float]:
    """Return, by offset, the share of targets [B, T] that equal the token that far ahead."""
    length, shares = wanted.shape[1], {}
    for offset in OFFSETS:
        start, end = max(-offset, 0), length - max(offset, 0)
        asks = wanted[:, start:end]
        holds = tokens[:, start + offset : end + offset] == asks
        shares[offset] = float(holds[asks >= 0].double().mean().nan_to_num())
    return shares


def _is_hidden(tokens: Tensor, wanted: Tensor) -> bool:
    shown, asks = tokens[wanted >= 0], wanted[wanted >= 0]
    if not len(shown):
        return False
    code = shown.mode().values
    return bool((shown == code).double().mean() >= HIDDEN_SHARE and not (asks == code).any())


def find_tokens(batch: Batch) -> str | None:
    """Return the input whose codes vary most, of those that may be sequences of tokens."""
    sequences = {
        name: len(np.unique(tensor.numpy()))
        for name, tensor in inputs_of(batch).items()
        if tensor.ndim == 2 and not tensor.is_floating_point() and tensor.shape[1] >= SHORTEST
    }
    return max(sequences, key=lambda name: sequences[name], default=None)


def measure_dependencies(model: nn.Module, batch: Batch, name: str, most: int) -> JsonValue:
    """Return how much the output at each position moves with the token at each, from 0 to 1.

    By output, by input, evenly spread over the positions.

    Args:
        model: In evaluation mode.
        batch: Its first example is changed, one token at a time.
        name: Name of the input with the tokens.
        most: Examples per forward pass.
    """
    length = batch[name].shape[1]
    places = torch.linspace(0, length - 1, min(length, MOST_POSITIONS)).round().long()
    one = select_head(inputs_of(batch), 1)
    used = torch.from_numpy(np.unique(batch[name].numpy()))
    columns = []
    with torch.no_grad():
        before = model(**one)
        for some in torch.split(places, max(most, 1)):
            inputs = {key: value.repeat(len(some), *[1] * (value.ndim - 1))
                      for key, value in one.items()}  # fmt: skip
            rows = torch.arange(len(some))
            at = torch.searchsorted(used, inputs[name][rows, some])
            inputs[name][rows, some] = used[(at + 1) % len(used)]
            # Copies in a batch may affect each other; `example_independence` checks that.
            columns.append(measure_moves(before, model(**inputs))[:, places])
    return shade(torch.cat(columns).t())


def measure_moves(before: Tensor, after: Tensor) -> Tensor:
    """Return the relative difference of the output at each position, [B, T]."""
    return (before - after).abs().amax(dim=2) / (1 + before.abs().amax(dim=2))


@contextmanager
def watch_modules(model: nn.Module, shape: Sequence[int], at: int) -> Iterator[dict[str, Tensor]]:
    """Record each module's output at one position, in order of execution.

    Args:
        model: The model.
        shape: Examples and positions; outputs of another shape are ignored.
        at: The position.
    """
    seen: dict[str, Tensor] = {}

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def keep(_: nn.Module, given: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor) and first.shape[:2] == tuple(shape) and first.ndim > 2:
                seen[name] = first[:, at].detach().double().flatten(1)

        return module.register_forward_hook(keep)

    handles = [watch(name, module) for name, module in model.named_modules()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def shade(moved: Tensor) -> JsonValue:
    """Return how far outputs move with inputs, [outputs, inputs], as `DEPENDENCIES` shows it.

    0 is not at all, 1 by its own size or more; between them each decade is one step.
    """
    decades = -math.log10(SMALLEST_MOVE)
    shades = (1 + moved.clamp_min(SMALLEST_MOVE).log10() / decades).clamp_max(1.0)
    return [[round(shade, 3) for shade in row] for row in shades.tolist()]
