"""Image and text: which caption belongs to which picture? Two towers (CLIP, Radford et al., 2021).

Use it by name in a contract, `task = "perennial.tasks.image_text:ImageTextContrastive"`, with the
caption as `data.label`, under `data.text`, and beside the picture as the second of `data.features`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue
from torch import Tensor, nn
from torch.nn import functional

from perennial.contracts.data import TaskColumns
from perennial.contracts.section import Section
from perennial.contracts.training import Direction
from perennial.engine.data.global_batch import gather_rows
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Batch, Task
from perennial.tasks.columns.image_columns import (
    ImageState,
    fit_images,
    image_column,
    read_images,
)
from perennial.tasks.columns.tokenization import BOUNDARY, SMALLEST_VOCABULARY, Tokenizer, texts_of
from perennial.tasks.decoder import Block, DecoderOptions, Embedding, normalization
from perennial.tasks.picture_networks import (
    PictureOptions,
    PositiveInt,
    picture_blocks,
    picture_network,
)

LARGEST_SCALE = 100.0  # CLIP's bound on the inverse temperature


class TextTower(nn.Module):
    """A causal transformer, read at each text's last token, where it has seen all of it."""

    def __init__(self, options: DecoderOptions, width: int) -> None:
        super().__init__()
        self.embedding = Embedding(options)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = normalization(options)
        self.projection = nn.Linear(options.width, width, bias=False)
        self._initialize()

    def forward(self, tokens: Tensor, length: Tensor) -> Tensor:
        """Ids [B, T] of texts with `length` [B] tokens → [B, D]."""
        stream = self.embedding(tokens)
        for block in self.blocks:
            stream = block(stream)
        last = stream[torch.arange(len(stream), device=stream.device), length - 1]
        return cast("Tensor", self.projection(self.norm(last)))

    @torch.no_grad()
    def _initialize(self) -> None:
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, 0.02)


class TwoTower(nn.Module):
    """A picture's and a text's direction; their product, times a learned scale, is the logit."""

    def __init__(self, image: nn.Module, text: TextTower, *, temperature: float) -> None:
        super().__init__()
        self.image = image
        self.text = text
        self.log_scale = nn.Parameter(torch.tensor([-math.log(temperature)]))

    def forward(
        self, image: Tensor, tokens: Tensor | None = None, length: Tensor | None = None
    ) -> Tensor:
        """Scaled picture directions and text directions, [B, 2, D]; without texts [B, 1, D]."""
        scale = self.log_scale.exp().clamp(max=LARGEST_SCALE)
        pictures = functional.normalize(self.image(image).float(), dim=-1) * scale
        if tokens is None or length is None:
            return pictures[:, None]
        texts = functional.normalize(self.text(tokens, length).float(), dim=-1)
        return torch.stack([pictures, texts], dim=1)


class TextOptions(Section):
    """The text tower."""

    vocab_size: Annotated[int, Field(ge=SMALLEST_VOCABULARY)] = SMALLEST_VOCABULARY
    """Token ids: 257 are bytes; more are byte pairs, learned from the training captions."""
    length: Annotated[int, Field(ge=2)] = 64
    """Most tokens of a caption, including its two boundaries; longer captions are truncated."""
    layers: PositiveInt = 2
    """Number of blocks; add some when captions are sentences instead of words."""
    heads: PositiveInt = 4
    """Attention heads."""
    width: PositiveInt = 64
    """Features of every token."""


class ImageTextOptions(PictureOptions):
    """Options of contrastive learning from captions."""

    architecture: Literal["resnet", "vit"] = "vit"
    """Architecture of the picture tower."""
    text: TextOptions = TextOptions()
    """The text tower."""
    embedding: PositiveInt = 64
    """Width of the common space; 256 to 1024 for large towers."""
    temperature: Annotated[float, Field(gt=0.0, le=1.0)] = 0.07
    """Initial temperature of the logits (CLIP's value); it is learned. Raise it towards 1 when the
    first steps are unstable."""
    candidates: PositiveInt = 64
    """Number of pictures and captions compared in evaluation; fixed, so that metrics mean the same
    for every batch size. Raise it when all metrics are near 1."""


class ImageTextContrastive(Task):
    """Each picture against the captions of the whole global batch, and the other way round.

    Training compares with every example of one forward pass on all ranks; several passes do not see
    each other and are refused. Evaluation compares with `candidates` neighbours in the split.
    """

    needs_whole_batch = gathers_batch = True
    Options = ImageTextOptions
    kind: Literal["statistic"] = "statistic"
    metrics: Mapping[str, Direction] = directions_of(
        "recall_at_1", "recall_at_5", "mean_reciprocal_rank"
    )
    statistics: ClassVar[tuple[str, ...]] = ("ahead", "tied", "ahead", "tied")
    tokens: ClassVar[str] = "tokens"

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.settings = cast("ImageTextOptions", options)
        self.column = image_column(columns, self.settings.image)
        self.images = ImageState()
        self.tokenizer = Tokenizer()

    @property
    def scored_together(self) -> int:
        """Return the number of candidates."""
        return self.settings.candidates

    @property
    def scoring_rows(self) -> int:
        """Return the rows of whole groups of candidates."""
        return self.settings.candidates * max(1, 1024 // self.settings.candidates)

    def fit(self, train: pl.LazyFrame) -> None:
        """Learn the pictures' form and statistics, and the captions' byte pairs."""
        options = self.settings
        self.images = fit_images(train, self.column, options.shape, options.size)
        texts = texts_of(train, self.columns.label)
        self.tokenizer = Tokenizer.learn(texts, options.text.vocab_size)

    def state(self) -> dict[str, JsonValue]:
        """Return statistics and byte pairs."""
        return {"images": self.images.model_dump(mode="json"), "merges": self.tokenizer.to_json()}

    def load_state(self, state: Mapping[str, JsonValue]) -> None:
        """Take over statistics and byte pairs."""
        self.images = ImageState.model_validate(state["images"], strict=False)
        self.tokenizer = Tokenizer.from_json(state["merges"])

    def encode(self, rows: pl.DataFrame) -> Batch:
        """`image` float32 [B, C, H, W]; with captions `tokens` [B, T], `length` and `label` [B].

        The label is 0: the right caption is the row's own.
        """
        pixels = read_images(rows[self.column], self.images)
        batch = {"image": torch.from_numpy(self.images.standardised(pixels))}
        if self.columns.label in rows.columns:
            limit = self.settings.text.length
            tokens = np.full((rows.height, limit), BOUNDARY, dtype=np.int64)
            lengths = np.empty(rows.height, dtype=np.int64)
            texts = rows[self.columns.label].fill_null("").to_list()
            for row, ids in enumerate(self.tokenizer.encode(texts)):
                kept = ids[: limit - 2]
                tokens[row, 1 : len(kept) + 1] = kept
                lengths[row] = len(kept) + 2
            batch |= {"tokens": torch.from_numpy(tokens), "length": torch.from_numpy(lengths)}
            batch[LABEL] = torch.zeros(rows.height, dtype=torch.int64)
        return batch

    def build_model(self) -> nn.Module:
        """Build both towers."""
        options, images = self.settings, self.images
        no_bias = torch.zeros(options.embedding)
        image = picture_network(options.network_shape, images, no_bias)
        text = DecoderOptions(
            vocab_size=options.text.vocab_size,
            context_length=options.text.length,
            layers=options.text.layers,
            heads=options.text.heads,
            width=options.text.width,
        )
        return TwoTower(image, TextTower(text, options.embedding), temperature=options.temperature)

    def training_losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Mean of both directions against the rows of all ranks, shape [B]."""
        weights = batch.get(WEIGHT, torch.ones(len(output), device=output.device))
        everyones = gather_rows(output[:, 0], output[:, 1], weights)
        pictures, texts, counts = everyones.rows
        # A row of weight 0 only keeps a rank in step; it is not a candidate.
        hidden = torch.where(counts > 0, 0.0, -torch.inf)
        right = everyones.start + torch.arange(len(output), device=output.device)
        # Its own row stays a candidate even for a row that does not count, so that none is NaN.
        own = functional.one_hot(right, len(counts)).bool()
        mask = torch.where(own, 0.0, hidden)
        to_text = output[:, 0] @ texts.T + mask
        to_picture = output[:, 1] @ pictures.T + mask
        return _mean_cross_entropy(to_text, to_picture, right)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss against `candidates` neighbours, shape [B]."""
        groups = torch.split(output, self.settings.candidates)
        return torch.cat([_mean_cross_entropy(*_logits(group)) for group in groups])

    def statistic(self, output: Tensor, batch: Batch) -> Tensor:
        """Captions ahead of the right one and as good, then pictures, among the candidates, [B, 4].

        The right one itself is among those that are as good: a model that gives all pairs the same
        score ranks at random, not first.
        """
        parts = []
        for group in torch.split(output, self.settings.candidates):
            to_text, to_picture, right = _logits(group)
            columns = []
            for scores in (to_text, to_picture):
                own = scores.gather(1, right[:, None])
                columns += [(scores > own).sum(dim=1), (scores == own).sum(dim=1)]
            parts.append(torch.stack(columns, dim=1))
        return torch.cat(parts).double()

    def predict(self, output: Tensor) -> Tensor:
        """Return the pictures' directions, shape [B, D]: what a search compares."""
        return functional.normalize(output[:, 0], dim=-1)

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return the names of the statistic."""
        return ("captions_ahead", "captions_tied", "pictures_ahead", "pictures_tied")

    def expected_initial_loss(self) -> float:
        """Return the log of the number of candidates, which all look alike."""
        return float(np.log(self.settings.candidates))

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the blocks of both towers."""
        towers = cast("TwoTower", model)
        return [*picture_blocks(towers.image), *towers.text.blocks]

    def describe(self, batch: Batch, index: int) -> dict[str, str]:
        """Return the caption as the model reads it."""
        length = int(batch["length"][index])
        return {self.columns.label: self.tokenizer.decode(batch["tokens"][index, :length].tolist())}

    def picture(self, batch: Batch, index: int) -> NDArray[np.uint8]:
        """Return the picture without its standardisation."""
        return self.images.shown(batch["image"][index].numpy())


def _logits(group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits of pictures and of captions, and the right ones, of a group [G, 2, D]."""
    products = group[:, 0] @ group[:, 1].T
    return products, products.T, torch.arange(len(group), device=group.device)


def _mean_cross_entropy(to_text: Tensor, to_picture: Tensor, right: Tensor) -> Tensor:
    both = [
        functional.cross_entropy(each, right, reduction="none") for each in (to_text, to_picture)
    ]
    return torch.stack(both).mean(dim=0)
