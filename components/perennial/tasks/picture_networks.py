"""Picture networks: options of a ResNet or ViT, and the network for pictures of a known form."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from perennial.contracts.data import ColumnName
from perennial.contracts.errors import BadTaskError
from perennial.engine.task import MeasuredOptions
from perennial.tasks.columns.image_columns import ImageState
from perennial.tasks.resnet import RESNETS, ResidualBlock, ResNet, ResNetShape
from perennial.tasks.vision_transformer import VITS, TransformerBlock, VisionTransformer, ViTShape

PositiveInt = Annotated[int, Field(ge=1)]
NetworkShape = ResNetShape | ViTShape
PRESETS: Mapping[str, Mapping[str, NetworkShape]] = {"resnet": RESNETS, "vit": VITS}


class PictureOptions(MeasuredOptions):
    """Options of tasks that read pictures."""

    architecture: Literal["resnet", "vit"] = "resnet"
    """`resnet` for up to about 100,000 pictures; `vit` needs more of them, or augmentation."""
    preset: Literal["small", "resnet18", "resnet50", "vit_tiny", "vit_small"] = "small"
    """`small` suits pictures of 8 to 32 pixels, the others those of 64 to 256."""
    image: ColumnName | None = None
    """The feature column with the pictures; None means the only feature, beside a caption."""
    shape: tuple[PositiveInt, ...] = ()
    """Height and width, and 3 for colour, of pictures that come as flat lists of numbers."""
    size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width that encoded pictures are scaled to; None takes them as they are and refuses
    pictures of another size. Set it when sizes differ."""

    @model_validator(mode="after")
    def _has_preset(self) -> Self:
        presets = PRESETS[self.architecture]
        if self.preset not in presets:
            raise ValueError(
                f"preset = {self.preset!r} is not a preset of {self.architecture}; choose "
                f"{', '.join(presets)}"
            )
        return self

    @property
    def network_shape(self) -> NetworkShape:
        """Return the preset."""
        return PRESETS[self.architecture][self.preset]


def picture_network(
    shape: NetworkShape,
    images: ImageState,
    initial_output: Tensor,
    *,
    dropout: float = 0.0,
    channels_last: bool = False,
) -> nn.Module:
    """Build a network for pictures of a known form; its last layer starts at `initial_output`.

    Raises:
        BadTaskError: the patches of a ViT do not divide the pictures.
    """
    if isinstance(shape, ResNetShape):
        return ResNet(
            shape, images.channels, initial_output, dropout=dropout, channels_last=channels_last
        )
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


def picture_blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Return the residual or transformer blocks of a network, in forward order."""
    kinds = ResidualBlock | TransformerBlock
    return [module for module in model.modules() if isinstance(module, kinds)]
