"""Picture networks: which presets does an architecture have, and do the pictures suit it?"""

from typing import Literal, TypeAlias

from torch import Tensor

from perennial.contracts.errors import BadTaskError
from perennial.tasks.columns.image_columns import ImageState
from perennial.tasks.resnet import RESNETS
from perennial.tasks.vision_transformer import VITS, VisionTransformer, ViTShape

Architecture: TypeAlias = Literal["resnet", "vit"]
Preset: TypeAlias = Literal["small", "resnet18", "resnet50", "vit_tiny", "vit_small"]


def require_preset(architecture: Architecture, preset: Preset) -> None:
    """Check that an architecture has a preset.

    Raises:
        ValueError: it has others.
    """
    presets = RESNETS if architecture == "resnet" else VITS
    if preset not in presets:
        raise ValueError(
            f"preset = {preset!r} is not a preset of {architecture}; choose {', '.join(presets)}"
        )


def vision_transformer(
    shape: ViTShape, images: ImageState, initial_output: Tensor, *, dropout: float = 0.0
) -> VisionTransformer:
    """A ViT for pictures of a known form.

    Raises:
        BadTaskError: the patches do not divide them.
    """
    patch = shape.patch
    if images.height % patch or images.width % patch:
        raise BadTaskError(
            f"pictures of {images.height} x {images.width} cannot be cut into patches of "
            f"{patch} x {patch}",
            action="choose another preset in model.options (model.options.vit.patch, where the "
            "task has it), or set model.options.size to a multiple",
        )
    size = (images.channels, images.height, images.width)
    return VisionTransformer(shape, size, initial_output, dropout=dropout)
