"""Image classification: encoded pictures or lists of pixels, through a ResNet or a ViT.

Use it by name in a contract: `task = "perennial.tasks.image_classification:ImageClassification"`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.section import Section
from perennial.contracts.training import Direction
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Batch, ParameterKeys
from perennial.tasks.classification import SoftmaxClassification
from perennial.tasks.columns.class_labels import ClassLabels, encode_classes, fit_classes
from perennial.tasks.columns.image_columns import (
    ImageState,
    fit_images,
    image_column,
    read_images,
)
from perennial.tasks.picture_augmentation import Augmentation, augment_pictures, mix_pictures
from perennial.tasks.picture_networks import (
    NetworkShape,
    PictureColumnOptions,
    PictureOptions,
    PositiveInt,
    ResNetShape,
    ViTShape,
    picture_blocks,
    picture_network,
)

IMAGE = "image"


class ResNetOptions(Section):
    """Overrides of a ResNet preset; options that are not set keep the preset's value."""

    block: Literal["basic", "bottleneck"] | None = None
    """Block type; `bottleneck` for networks of 50 layers and more."""
    depths: tuple[PositiveInt, ...] = ()
    """Blocks of each stage; add some when the training loss stays high."""
    widths: tuple[PositiveInt, ...] = ()
    """Channels of each stage; halve them when the model must be small."""
    stem: Literal["small", "large"] | None = None
    """First layers; `large` for pictures of 64 pixels and more: it quarters height and width
    first."""


class ViTOptions(Section):
    """Overrides of a ViT preset; options that are not set keep the preset's value."""

    patch: PositiveInt | None = None
    """Side of a patch in pixels. Halving it makes four times as many tokens: finer, and slower."""
    width: PositiveInt | None = None
    """Features of every token; a multiple of `heads`."""
    depth: PositiveInt | None = None
    """Number of blocks; add some when the training loss stays high."""
    heads: PositiveInt | None = None
    """Attention heads; 32 to 64 features per head are usual."""
    pooling: Literal["mean", "token"] | None = None
    """Pooling over tokens; `token` only to match published weights."""


class LabelledPictureOptions(PictureColumnOptions):
    """Options that set how pictures are read and changed, and what is learned of them."""

    channels: Literal[1, 3] | None = None
    """1 for grey pictures, 3 for colour; None is 3 if one training picture is in colour."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of each label spread over all classes, in the training loss only: 0.1 keeps a large
    model from overconfidence. Its initial value is (1 - s) H + s L under classes of entropy H and
    mean negative log share L; evaluation, gate and monitoring use the plain cross-entropy."""
    augmentation: Augmentation = Augmentation()
    """Random changes to training pictures."""


class ImageOptions(LabelledPictureOptions, PictureOptions):
    """Options of image classification."""

    resnet: ResNetOptions = ResNetOptions()
    """Overrides of the preset."""
    vit: ViTOptions = ViTOptions()
    """Overrides of the preset."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout. Raise it when the validation loss rises while the training loss falls."""
    channels_last: bool = False
    """Memory format of a ResNet's weights and activations: measured 1.4 times faster on a CPU, and
    right for tensor cores. With strategy `single` or `ddp`; FSDP cannot shard such weights and
    refuses."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        unused = self.vit if self.architecture == "resnet" else self.resnet
        if unused != type(unused)():
            raise ValueError(f"architecture = {self.architecture!r} does not use {unused!r}")
        shape = self.network_shape
        if isinstance(shape, ResNetShape) and len(shape.depths) != len(shape.widths):
            raise ValueError(f"{len(shape.depths)} depths need as many widths")
        if isinstance(shape, ViTShape):
            if self.channels_last:
                raise ValueError("channels_last is for convolutions: leave it out for a vit")
            if shape.width % shape.heads:
                raise ValueError("vit.width must be a multiple of vit.heads")
        return self

    @property
    def network_shape(self) -> NetworkShape:
        """Return the preset with its overrides."""
        own = self.resnet if self.architecture == "resnet" else self.vit
        return replace(super().network_shape, **{name: value for name, value in own if value})


class ImageClassificationState(ClassLabels):
    """What the task learns from the training split."""

    images: ImageState = ImageState()


class ImageClassifier(SoftmaxClassification):
    """Base: one picture, one of two or more classes.

    A batch holds `image` float32 [B, C, H, W], standardised per channel.
    """

    Options = LabelledPictureOptions
    metrics: Mapping[str, Direction] = directions_of("accuracy", "log_loss", "macro_f1")
    fitted: ImageClassificationState

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.image_options = cast("LabelledPictureOptions", options)
        self.label_smoothing = self.image_options.label_smoothing
        self.column = image_column(columns, self.image_options.image)
        self.fitted = ImageClassificationState()

    def fit(self, train: pl.LazyFrame) -> None:
        """Learn the pictures' form, mean and deviation, and the class shares."""
        options = self.image_options
        images = fit_images(train, self.column, options.shape, options.size, options.channels)
        labels = fit_classes(train, self.columns.label)
        self.fitted = ImageClassificationState(**dict(labels), images=images)

    @property
    def images(self) -> ImageState:
        """Return form and normalisation of the inputs."""
        return self.fitted.images

    def encode(self, rows: pl.DataFrame) -> Batch:
        """`image` float32 [B, C, H, W], standardised per channel, and, if present, `label`."""
        pixels = read_images(rows[self.column], self.images)
        batch = {IMAGE: torch.from_numpy(self.images.standardised(pixels))}
        if self.columns.label in rows.columns:
            codes = encode_classes(rows[self.columns.label], self.fitted.classes)
            batch[LABEL] = torch.from_numpy(codes)
        return batch

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build a model of `image` [B, C, H, W] → logits [B, K]."""

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Change each picture by its own draw; mixtures have shares of classes [B, K] as label."""
        options = self.image_options.augmentation
        image, label = augment_pictures(batch[IMAGE], options, generator), batch[LABEL]
        if options.mixup or options.cutmix:
            classes = len(self.fitted.classes)
            image, label = mix_pictures(image, label, classes, options, generator)
        return {**batch, IMAGE: image, LABEL: label}

    def describe(self, batch: Batch, index: int) -> dict[str, str]:
        """Return the class by name, and the pixels' range."""
        image = batch[IMAGE][index]
        shown = {"pixels": f"{image.min():.3g} to {image.max():.3g}, mean {image.mean():.3g}"}
        if LABEL in batch:
            label, classes = batch[LABEL][index], self.fitted.classes
            parts = {int(label): 1.0} if not label.ndim else dict(enumerate(label.tolist()))
            named = {classes[code]: share for code, share in parts.items() if share}
            mixed = ", ".join(f"{name} {share:.0%}" for name, share in named.items())
            shown[self.columns.label] = mixed if len(named) > 1 else next(iter(named))
        return shown

    def picture(self, batch: Batch, index: int) -> NDArray[np.uint8]:
        """Return the picture without its standardisation."""
        return self.images.shown(batch[IMAGE][index].numpy())


class ImageClassification(ImageClassifier):
    """A ResNet or a ViT of its own."""

    Options = ImageOptions

    def build_model(self) -> nn.Module:
        """Build the network; its last layer starts at the class prior."""
        options, images = cast("ImageOptions", self.options), self.images
        prior = torch.tensor(self.fitted.class_shares).log()
        return picture_network(
            options.network_shape,
            images,
            prior,
            dropout=options.dropout,
            channels_last=options.channels_last,
        )

    def parameter_keys(self) -> Mapping[str, ParameterKeys]:
        """Return the keys of the last layer: the classes."""
        return self.class_keys("head")

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the residual or transformer blocks."""
        return picture_blocks(model)
