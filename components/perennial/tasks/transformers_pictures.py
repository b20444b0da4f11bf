"""Transformers models of pictures: any image classifier of the package, by name.

Use it by name in a contract:
`task = "perennial.tasks.transformers_pictures:TransformersImageClassification"`, with
`pip install 'perennial[transformers]'`. Nothing is downloaded: a configuration is enough, and
`[model.initial]` may name weights.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import polars as pl
import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.contracts.section import Section
from perennial.engine.task import ParameterKeys
from perennial.tasks.columns.image_columns import ImageState
from perennial.tasks.columns.picture_preprocessor import load_preprocessor
from perennial.tasks.columns.pretrained_files import read_pretrained
from perennial.tasks.image_classification import (
    ImageClassificationState,
    ImageClassifier,
    LabelledPictureOptions,
)
from perennial.tasks.transformers_models import (
    REFUSALS,
    ModelOptions,
    build_from_config,
    clear_errors,
    describe_error,
    find_head,
    find_layers,
    import_transformers,
)
from perennial.tasks.transformers_names import PublishedModel


class TransformersPictureOptions(LabelledPictureOptions, ModelOptions):
    """Options of an image classifier of `transformers`, and how pictures become its examples."""

    model_type: str = "vit"
    """The family's name in `transformers`, such as `vit`, `resnet`, `convnext` or `swin`."""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """The family's own settings, such as `hidden_size`; missing ones are the family's defaults,
    which suit photos. Number of classes and channels follow from the data, and so does
    `image_size`, where the family has it."""
    preprocessor: str = ""
    """A pretrained model's `preprocessor_config.json`: a path, from the contract's folder if it is
    relative, or an address in an object store. Its mean, deviation and channels are kept with the
    model, and its size where `size` is not set: whole pictures are scaled to it, bilinear, where
    the published model may have cropped them. Empty means those of the training split."""


class PretrainedImageState(ImageClassificationState):
    """What the task learns from the training split, and the preprocessor that it keeps."""

    preprocessor: str = ""
    """Content of `preprocessor_config.json`."""


class TransformersImageClassification(PublishedModel, ImageClassifier):
    """A model built by `AutoModelForImageClassification.from_config`."""

    Options = TransformersPictureOptions

    fitted: PretrainedImageState

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.fitted = PretrainedImageState()

    def fit(self, train: pl.LazyFrame) -> None:
        """Learn the pictures' form and the class shares; keep the preprocessor, if it is named.

        Raises:
            BadTaskError: the preprocessor cannot be read, or is for other pictures.
        """
        options, content = cast("TransformersPictureOptions", self.options), ""
        if options.preprocessor:
            name = "preprocessor_config.json"
            content = read_pretrained(options.preprocessor, "preprocessor", name)
            named = load_preprocessor(content)
            self._require_pixels(named.channels)
            form = {"size": options.size or named.size, "channels": named.channels}
            self.image_options = options.model_copy(update=form)
        super().fit(train)
        self.fitted = PretrainedImageState(**dict(self.fitted), preprocessor=content)

    @property
    def images(self) -> ImageState:
        """Return form and normalisation of the inputs: the pretrained model's, if it is named."""
        if not self.fitted.preprocessor:
            return super().images
        named = load_preprocessor(self.fitted.preprocessor)
        normalisation = {"means": named.means, "deviations": named.deviations}
        return self.fitted.images.model_copy(update=normalisation)

    def build_model(self) -> nn.Module:
        """Build a model with random weights, of which the last layer starts at the class prior.

        Raises:
            BadTaskError: the package is not installed, or refuses family or settings; the family is
                no image classifier, or does not take pictures of this form.
        """
        options, classes = cast("TransformersPictureOptions", self.options), self.fitted.classes
        settings = {**self._read_sizes(options), **options.config, "num_labels": len(classes)}
        model = build_from_config(options, "AutoModelForImageClassification", settings)
        head = cast("nn.Linear", model.get_submodule(find_head(model, len(classes), "vit")))
        with torch.no_grad():
            head.weight.mul_(0.1)  # some families start theirs far from the prior
            head.bias.copy_(torch.tensor(self.fitted.class_shares).log())
        wrapped = PictureLogitsOf(model)
        _require_form(wrapped, self.images, len(classes))
        return wrapped

    def parameter_keys(self) -> Mapping[str, ParameterKeys]:
        """Return the keys of the last layer: the classes."""
        with torch.device("meta"):
            model = cast("PictureLogitsOf", self.build_model()).model
        return self.class_keys(f"model.{find_head(model, len(self.fitted.classes))}")

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the family's layers or stages: the list of modules with most of the parameters."""
        return find_layers(model)

    def _require_pixels(self, channels: int) -> None:
        """Check that a preprocessor of so many channels is for the pictures of the column."""
        asked, kind = self.image_options.channels, self.columns.features[self.column]
        if kind != "Binary":
            raise BadTaskError(
                "model.options.preprocessor is for encoded pictures, whose pixels are 0 to 255",
                evidence=f"{self.column!r} is {kind}",
                action="remove it, or write PNG or JPEG bytes",
            )
        if asked not in (None, channels):
            raise BadTaskError(
                f"model.options.channels = {asked}, and the preprocessor has {channels}",
                action="remove channels: pictures are converted to those of the preprocessor",
            )

    def _read_sizes(self, options: ModelOptions) -> dict[str, JsonValue]:
        """Return the settings of the family that follow from the pictures' form."""
        images = self.images
        with clear_errors(options, "configuration"):
            default = import_transformers().AutoConfig.for_model(options.model_type)
        is_square = images.height == images.width
        form: dict[str, JsonValue] = {
            "num_channels": images.channels,
            "image_size": images.height if is_square else [images.height, images.width],
        }
        return {name: value for name, value in form.items() if hasattr(default, name)}


class PictureLogitsOf(nn.Module):
    """The model's logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        """Pictures [B, C, H, W] → logits [B, K]."""
        logits: Tensor = self.model(pixel_values=image).logits
        return logits


def _require_form(model: nn.Module, images: ImageState, classes: int) -> None:
    """Check with one picture that the model takes this form, and returns a logit per class."""
    device = next(model.parameters()).device
    if device.type == "meta":  # where some families cannot run
        return
    picture = torch.zeros(1, images.channels, images.height, images.width, device=device)
    try:
        with torch.no_grad():
            found = tuple(model.eval()(picture).shape)
        why = "" if found == (1, classes) else f"it returns {list(found)} for one picture"
    except REFUSALS as error:
        why = describe_error(error)
    model.train()
    if why:
        raise BadTaskError(
            f"the family does not take pictures of {images.height} x {images.width} pixels and "
            f"{images.channels} channels",
            evidence=why,
            action="set size or channels in model.options, or correct model.options.config",
        )
