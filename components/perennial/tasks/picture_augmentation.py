"""Picture augmentation: random changes to a batch of training pictures, and mixtures of pairs.

Pictures are standardised float32 [B, C, H, W]. Every random number is drawn from the generator.
"""

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from perennial.contracts.section import Section

NotNegative = Annotated[float, Field(ge=0.0)]


class Augmentation(Section):
    """Augmentation of training pictures, off by default.

    Turn one on when the validation loss rises while the training loss falls, and only if it does
    not change the label.
    """

    shift: Annotated[int, Field(ge=0)] = 0
    """Largest random shift in each direction, in pixels; border pixels are repeated."""
    flip: bool = False
    """Flip every second picture horizontally; never for letters, digits or traffic signs."""
    rotation: Annotated[float, Field(ge=0.0, le=180.0)] = 0.0
    """Largest random turn in each direction, in degrees; 10 to 15 for photographs, 180 where there
    is no upside, as under a microscope."""
    crop: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Smallest side of a random crop as a share of the picture's; it is scaled back to the whole.
    1 crops nothing; 0.7 to 0.9 where the object may lie anywhere."""
    color: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Largest random change of contrast, as a share, and of brightness, in standard deviations of
    the pixels; 0.2 to 0.4 where light varies."""
    noise: NotNegative = 0.0
    """Standard deviation of added noise, in standard deviations of the pixels; 0.1 is hardly
    visible."""
    mixup: NotNegative = 0.0
    """Blend pairs of pictures and their labels in shares of a Beta(a, a) distribution (Zhang et
    al., 2018); 0.2 is usual, 0 is off. Training needs longer; its loss no longer approaches 0."""
    cutmix: NotNegative = 0.0
    """Paste a box of one picture into another and mix the labels by area, of a Beta(a, a)
    distribution (Yun et al., 2019); 1 is usual, 0 is off. With `mixup`, each batch draws one."""


def augment_pictures(image: Tensor, options: Augmentation, generator: torch.Generator) -> Tensor:
    """Change each picture by its own draw; labels stay as they are."""
    rows = len(image)
    if options.shift:
        image = _shift(image, options.shift, generator)
    if options.flip:
        is_flipped = torch.rand(rows, generator=generator) < 0.5
        image = torch.where(is_flipped[:, None, None, None], image.flip(3), image)
    if options.rotation or options.crop < 1.0:
        image = _turn_and_crop(image, options, generator)
    if options.color:
        draws = 2.0 * torch.rand(2, rows, 1, 1, 1, generator=generator) - 1.0
        image = image * (1.0 + options.color * draws[0]) + options.color * draws[1]
    if options.noise:
        image = image + options.noise * torch.randn(image.shape, generator=generator)
    return image


def mix_pictures(
    image: Tensor, labels: Tensor, classes: int, options: Augmentation, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mix each picture with another of the batch, by `mixup` or `cutmix`; labels are [B].

    Returns:
        Pictures, and the share of each class in them, float32 [B, K].
    """
    other = torch.randperm(len(image), generator=generator)
    seed, coin = torch.randint(2**62, (2,), generator=generator).tolist()
    is_cut = not options.mixup or bool(options.cutmix and coin % 2)
    alpha = options.cutmix if is_cut else options.mixup
    # torch's Beta distribution takes no generator.
    drawn = np.random.default_rng(seed).beta(alpha, alpha, len(image))
    share = torch.from_numpy(drawn).float()[:, None, None, None]
    kept = _cut_boxes(share, image.shape[2:], generator) if is_cut else share
    mixed = kept * image + (1.0 - kept) * image[other]
    own = functional.one_hot(labels, classes).float()
    part = kept.mean(dim=(1, 2, 3))[:, None]
    return mixed, part * own + (1.0 - part) * own[other]


def _cut_boxes(share: Tensor, size: torch.Size, generator: torch.Generator) -> Tensor:
    """Return masks [B, 1, H, W] that are 0 in a box of about 1 - share of the area."""
    masks = []
    for place, pixels in enumerate(size):
        length = ((1.0 - share[:, :, 0, 0]).sqrt() * pixels).round()
        start = (torch.rand(len(share), 1, generator=generator) * (pixels - length + 1)).floor()
        along = torch.arange(pixels)
        inside = (along >= start) & (along < start + length)
        masks.append(inside[:, None, :, None] if place == 0 else inside[:, None, None, :])
    return 1.0 - (masks[0] & masks[1]).float()


def _shift(image: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Move each picture by its own whole pixels; the border is repeated into the gap."""
    rows, channels, height, width = image.shape
    moves = torch.randint(-most, most + 1, (2, rows, 1), generator=generator)
    down = (torch.arange(height) + moves[0]).clamp(0, height - 1)
    across = (torch.arange(width) + moves[1]).clamp(0, width - 1)
    return image[
        torch.arange(rows)[:, None, None, None],
        torch.arange(channels)[None, :, None, None],
        down[:, None, :, None],
        across[:, None, None, :],
    ]


def _turn_and_crop(image: Tensor, options: Augmentation, generator: torch.Generator) -> Tensor:
    """Turn and enlarge each picture around its own point in one bilinear resampling."""
    rows, _, height, width = image.shape
    turn, side, *places = torch.rand(4, rows, generator=generator)
    angle = math.radians(options.rotation) * (2.0 * turn - 1.0)
    scale = options.crop + (1.0 - options.crop) * side
    cos, sin = scale * angle.cos(), scale * angle.sin()
    across, down = ((1.0 - scale) * (2.0 * place - 1.0) for place in places)
    # Coordinates run from -1 to 1 along both sides, whatever their lengths.
    aspect = height / width
    matrix = torch.stack(
        [torch.stack([cos, -sin * aspect, across], 1), torch.stack([sin / aspect, cos, down], 1)], 1
    )
    grid = functional.affine_grid(matrix, list(image.shape), align_corners=False)
    return functional.grid_sample(image, grid, padding_mode="border", align_corners=False)
