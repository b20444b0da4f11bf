"""Other readings of the inputs, and other orders of the blocks, that initial weights may be for."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from perennial.check_skeleton.subject import Subject
from perennial.engine.task import inputs_of

# The statistics that torchvision's and timm's weights of ImageNet were trained with.
IMAGENET_MEANS, IMAGENET_DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MOST_BLOCKS = 24
SHOWN_PICTURES = 16
ROUNDED = 1.0
"""Pixels of 8 bits differ by half a level from the inputs, and from a fitted line by a bit more."""

Reading = Callable[[Tensor], Tensor]


def list_readings(subject: Subject) -> tuple[str, dict[str, Reading]]:
    """Return the largest input of numbers, and other ways to normalise it; none without numbers."""
    inputs = inputs_of(subject.train)
    numbers = {name: each for name, each in inputs.items() if each.is_floating_point()}
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
        "standardised by this data": lambda x: (x - mean) / deviation.clamp_min(1e-6)
    }
    is_coloured = tensor.ndim == 4 and tensor.shape[1] == len(IMAGENET_MEANS)
    pixels = _find_pixels(subject, tensor)
    readings |= (
        _read_relatively(is_coloured=is_coloured)
        if pixels is None
        else _read_pixels(pixels, is_coloured=is_coloured)
    )
    if is_coloured:
        readings["with the channels in reverse order"] = lambda x: x.flip(1)
    return name, readings


def _read_relatively(*, is_coloured: bool) -> dict[str, Reading]:
    """Return what may have been done to the inputs once too often, or been forgotten."""
    readings: dict[str, Reading] = {
        "times 255": lambda x: x * 255,
        "divided by 255": lambda x: x / 255,
        "moved from 0..1 to -1..1": lambda x: 2 * x - 1,
        "moved from -1..1 to 0..1": lambda x: (x + 1) / 2,
    }
    if is_coloured:
        readings |= {
            "with ImageNet's normalisation": _normalise,
            "without ImageNet's normalisation": _undo_normalise,
        }
    return readings


def _read_pixels(pixels: Reading, *, is_coloured: bool) -> dict[str, Reading]:
    """Return the normalisations of published models, of pixels of 0 to 1."""
    readings: dict[str, Reading] = {
        "as pixels of 0 to 1": pixels,
        "as pixels of -1 to 1": lambda x: 2 * pixels(x) - 1,
        "as pixels of 0 to 255": lambda x: 255 * pixels(x),
    }
    if is_coloured:
        readings["with ImageNet's normalisation"] = lambda x: _normalise(pixels(x))
    return readings


def _normalise(image: Tensor) -> Tensor:
    return (image - _of_channels(IMAGENET_MEANS, image)) / _of_channels(IMAGENET_DEVIATIONS, image)


def _undo_normalise(image: Tensor) -> Tensor:
    return image * _of_channels(IMAGENET_DEVIATIONS, image) + _of_channels(IMAGENET_MEANS, image)


def _of_channels(values: Sequence[float], image: Tensor) -> Tensor:
    return torch.tensor(values, dtype=image.dtype)[:, None, None]


def _find_pixels(subject: Subject, inputs: Tensor) -> Reading | None:
    """Return the reading of inputs [B, C, H, W] as pixels of 0 to 1.

    None where the pictures that the task shows are not the inputs, scaled and moved by channel.
    """
    inputs = inputs[:SHOWN_PICTURES]
    shown = [subject.task.picture(subject.train, index) for index in range(len(inputs))]
    pictures = [each for each in shown if each is not None]
    is_alike = len({each.shape for each in pictures}) == 1
    if inputs.ndim != 4 or len(pictures) < len(inputs) or not is_alike:
        return None
    pixels = torch.from_numpy(np.stack(pictures)).view(len(pictures), *pictures[0].shape[:2], -1)
    pixels = pixels.permute(0, 3, 1, 2).to(inputs.dtype)
    if pixels.shape != inputs.shape:
        return None
    x, y = (each - each.mean(dim=(0, 2, 3), keepdim=True) for each in (inputs, pixels))
    slope = (x * y).sum((0, 2, 3), keepdim=True) / x.square().sum((0, 2, 3), keepdim=True)
    start = (pixels - slope * inputs).mean(dim=(0, 2, 3), keepdim=True)
    off = (slope * inputs + start - pixels).abs().max()
    if not off <= ROUNDED:  # NaN where a channel is constant
        return None
    return lambda image: (slope * image + start) / 255


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
