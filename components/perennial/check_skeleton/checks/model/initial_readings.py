"""Other readings of the inputs, and other orders of the blocks, that initial weights may be for."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from perennial.check_skeleton.subject import Subject
from perennial.engine.task import Batch, inputs_of

# The statistics that torchvision's and timm's weights of ImageNet were trained with.
IMAGENET_MEANS, IMAGENET_DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MOST_BLOCKS = 24

Reading = Callable[[Tensor], Tensor]


def list_readings(batch: Batch) -> tuple[str, dict[str, Reading]]:
    """Return the largest input of numbers, and other ways to normalise it; none without numbers."""
    numbers = {name: each for name, each in inputs_of(batch).items() if each.is_floating_point()}
    if not numbers:
        return "", {}
    name = max(numbers, key=lambda each: numbers[each][0].numel())
    tensor = numbers[name]
    others = [axis for axis in range(tensor.ndim) if axis != 1]
    mean, deviation = (
        each(dim=others, keepdim=True) if tensor.ndim > 1 else each()
        for each in (tensor.mean, tensor.std)
    )
    readings: dict[str, Reading] = {
        "standardised by this data": lambda x: (x - mean) / deviation.clamp_min(1e-6),
        "times 255": lambda x: x * 255,
        "divided by 255": lambda x: x / 255,
        "moved from 0..1 to -1..1": lambda x: 2 * x - 1,
        "moved from -1..1 to 0..1": lambda x: (x + 1) / 2,
    }
    if tensor.ndim == 4 and tensor.shape[1] == len(IMAGENET_MEANS):
        means, scales = (
            torch.tensor(each, dtype=tensor.dtype)[:, None, None]
            for each in (IMAGENET_MEANS, IMAGENET_DEVIATIONS)
        )
        readings |= {
            "with ImageNet's normalisation": lambda x: (x - means) / scales,
            "without ImageNet's normalisation": lambda x: x * scales + means,
            "with the channels in reverse order": lambda x: x.flip(1),
        }
    return name, readings


def exchange_blocks(subject: Subject, model: nn.Module) -> Iterator[str]:
    """Exchange equal blocks of a model in place, one pair at a time, and yield what was done.

    Each pair is put back before the next one.
    """
    blocks = list(subject.task.blocks(model))[:MOST_BLOCKS]
    for number, pair in enumerate(pairwise(blocks)):
        before = [
            {key: value.clone() for key, value in block.state_dict().items()} for block in pair
        ]
        shapes = [{key: value.shape for key, value in state.items()} for state in before]
        if shapes[0] != shapes[1]:
            continue
        for block, state in zip(pair, reversed(before), strict=True):
            block.load_state_dict(state)
        yield f"blocks {number} and {number + 1} exchanged"
        for block, state in zip(pair, before, strict=True):
            block.load_state_dict(state)
