"""Text classification: texts as bytes or byte pairs, through a small bidirectional encoder or none.

Use it by name in a contract, `task = "perennial.tasks.text_classification:TextClassification"`,
with the text column as the one of `data.features`, and under `data.text`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self, cast

import numpy as np
import polars as pl
import torch
from pydantic import Field, JsonValue, model_validator
from torch import Tensor, nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.contracts.section import Section
from perennial.contracts.training import Direction
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Batch, MeasuredOptions, ParameterKeys
from perennial.tasks.classification import ClassTask, SoftmaxClassification
from perennial.tasks.columns.class_labels import ClassLabels, encode_classes, fit_classes
from perennial.tasks.columns.tokenization import (
    BOUNDARY,
    SMALLEST_VOCABULARY,
    Encoded,
    EncodedBytes,
    Tokenizer,
    texts_of,
)
from perennial.tasks.decoder import INITIAL_STD, DecoderOptions, Embedding
from perennial.tasks.picture_networks import TransformerBlock

PositiveInt = Annotated[int, Field(ge=1)]
TOKENS, LENGTH = "tokens", "length"


class TextOptions(MeasuredOptions):
    """Options that set how texts become tokens, and what is learned of them."""

    vocab_size: Annotated[int, Field(ge=SMALLEST_VOCABULARY)] = SMALLEST_VOCABULARY
    """Token ids: 257 are the bytes and the boundary before a text; more are byte pairs, learned
    from the training split with the package `tokenizers`. 2,000 to 10,000 where there are thousands
    of texts: words are then learned sooner, and four times as much text fits in."""
    context_length: Annotated[int, Field(ge=2)] = 256
    """Tokens of the longest text; the rest of a longer one is cut off. Raise it until few examples
    in the report of the sanity checks are full."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of each label spread over all classes, in the training loss only; 0.05 to 0.1 where
    labels are noisy."""
    token_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Augmentation: share of a training text's tokens that are hidden, drawn again in each batch.
    0.1 to 0.3 where a few words are memorised."""


class TextEncoderOptions(TextOptions):
    """How texts become tokens, and the encoder that reads them."""

    layers: Annotated[int, Field(ge=0)] = 2
    """Number of blocks; add some when the training loss stays high. 0 reads a text as a bag of its
    tokens, whose order is lost (fastText, arXiv:1607.01759): with byte pairs, the better choice for
    up to some ten thousand texts of a sentence or more, and a twentieth of the time."""
    heads: PositiveInt = 4
    """Attention heads; 32 to 64 features per head are usual."""
    width: PositiveInt = 128
    """Features of every token; a multiple of `heads`."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Dropout. Raise it when the validation loss rises while the training loss falls."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide width = {self.width}")
        return self


class TextState(ClassLabels):
    """What the task learns from the training split."""

    merges: tuple[tuple[int, int], ...] = ()
    """Byte pairs."""


class TextTask(ClassTask):
    """Base: one text, and classes of the text or of its parts.

    A batch holds `tokens` int32 [B, T], padded on the right, and `length` int64 [B]; a model must
    look at no position from `length` on.
    """

    Options = TextOptions
    tokens: ClassVar[str] = TOKENS
    fitted: TextState
    text_column: ClassVar[str] = 'name it: features = ["COLUMN"] and text = ["COLUMN"]  # in [data]'
    """How to name or make the column."""
    padding = BOUNDARY
    hidden_token = BOUNDARY
    """What stands in the place of a token that `token_dropout` hides; in no text."""

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.text_options = cast("TextOptions", options)
        self.label_smoothing = self.text_options.label_smoothing
        if list(columns.features.values()) != ["String"]:
            found = ", ".join(f"{name} is {dtype}" for name, dtype in columns.features.items())
            raise BadTaskError(
                f"{type(self).__name__} reads one column of text",
                evidence=f"the features: {found}",
                action=self.text_column,
            )
        (self.column,) = columns.features
        self.fitted = TextState()
        self.tokenizer = Tokenizer()

    def fit(self, train: pl.LazyFrame) -> None:
        """Learn the class shares, and the byte pairs if any are asked for."""
        self.tokenizer = Tokenizer.learn(texts_of(train, self.column), self.text_options.vocab_size)
        labels = self.fit_labels(train)
        self.fitted = TextState(**dict(labels), merges=self.tokenizer.merges)

    @abstractmethod
    def fit_labels(self, train: pl.LazyFrame) -> ClassLabels:
        """Return the classes of the training split."""

    def load_state(self, state: Mapping[str, JsonValue]) -> None:
        """Take over class shares and byte pairs."""
        super().load_state(state)
        self.tokenizer = Tokenizer(self.fitted.merges)

    def encode(self, rows: pl.DataFrame) -> Batch:
        """`tokens` int32 [B, T], `length` int64 [B] and, if present, what the label gives."""
        shape = rows.height, self.text_options.context_length
        tokens, lengths = np.full(shape, self.padding, np.int32), np.ones(rows.height, np.int64)
        texts = self.read_texts(rows)
        every = self.read_tokens(texts)
        for row, encoded in enumerate(every):
            ids = np.asarray(encoded.ids, np.int32)
            tokens[row, : len(ids)] = ids
            lengths[row] = max(len(ids), 1)  # a text without tokens is one token of padding
        batch = {TOKENS: torch.from_numpy(tokens), LENGTH: torch.from_numpy(lengths)}
        if self.columns.label in rows.columns:
            batch |= self.encode_labels(rows[self.columns.label], texts, every)
        return batch

    @abstractmethod
    def encode_labels(
        self, labels: pl.Series, texts: Sequence[str], every: Sequence[Encoded]
    ) -> Batch:
        """Return `label`, and `weight` where examples count differently.

        Args:
            labels: One for each text.
            texts: As they were read.
            every: The tokens of each.
        """

    def read_texts(self, rows: pl.DataFrame) -> list[str]:
        """Return the text of each row; empty where it is missing."""
        return rows[self.column].cast(pl.String).fill_null("").to_list()

    def read_tokens(self, texts: Sequence[str]) -> Sequence[Encoded]:
        """Return the tokens of each text behind a boundary, at most `context_length`."""
        room = self.text_options.context_length - 1
        return [
            EncodedBytes(
                np.concatenate([[BOUNDARY], ids[:room]], dtype=np.int32), text, self.tokenizer
            )
            for text, ids in zip(texts, self.tokenizer.encode(texts), strict=True)
        ]

    def decode_tokens(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.tokenizer.decode(ids)

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build a model of `tokens` [B, T] and `length` [B] → logits [B, K]."""

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Hide a share of each text's tokens; the first one, a mark of the beginning, stays."""
        share = self.text_options.token_dropout
        if not share:
            return batch
        tokens, places = batch[TOKENS], torch.arange(batch[TOKENS].shape[1])
        is_text = (places > 0) & (places < batch[LENGTH][:, None])
        is_hidden = is_text & (torch.rand(tokens.shape, generator=generator) < share)
        return {**batch, TOKENS: tokens.masked_fill(is_hidden, self.hidden_token)}

    def describe(self, batch: Batch, index: int) -> dict[str, str]:
        """Return the text as the model reads it, how full its sequence is, and the label."""
        length, most = int(batch[LENGTH][index]), batch[TOKENS].shape[1]
        ids = batch[TOKENS][index, :length].tolist()
        shown = {
            self.column: self.decode_tokens(ids),
            TOKENS: f"{length} of {most}{', full' if length == most else ''}",
        }
        if LABEL in batch:
            shown[self.columns.label] = self.describe_label(batch[LABEL][index], ids)
        return shown

    @abstractmethod
    def describe_label(self, label: Tensor, ids: Sequence[int]) -> str:
        """Describe an example's label; `ids` are its tokens without padding."""


class TextClassifier(TextTask, SoftmaxClassification):
    """Base: one text, one of two or more classes."""

    metrics: Mapping[str, Direction] = directions_of("log_loss", "accuracy", "macro_f1")

    def fit_labels(self, train: pl.LazyFrame) -> ClassLabels:
        """Return the values of the label."""
        return fit_classes(train, self.columns.label)

    def encode_labels(
        self, labels: pl.Series, texts: Sequence[str], every: Sequence[Encoded]
    ) -> Batch:
        """`label` int64 [B]."""
        return {LABEL: torch.from_numpy(encode_classes(labels, self.fitted.classes))}

    def describe_label(self, label: Tensor, ids: Sequence[int]) -> str:
        """Return the class."""
        return self.fitted.classes[int(label)]


class OwnEncoder(TextTask):
    """Base: texts through a small encoder of its own."""

    Options = TextEncoderOptions
    encoder: ClassVar[type["TextEncoder"]]
    """The model."""

    def build_model(self) -> nn.Module:
        """Build an encoder; its last layer starts at the class prior."""
        prior = torch.tensor(self.fitted.class_shares).log()
        return self.encoder(cast("TextEncoderOptions", self.options), prior)

    def parameter_keys(self) -> Mapping[str, ParameterKeys]:
        """Return the keys of embedding and last layer: tokens and classes."""
        tokens = self.tokenizer.keys(self.text_options.vocab_size)
        embedding = ParameterKeys("token embedding", (tokens, None))
        return {"embedding.tokens.weight": embedding, **self.class_keys("head")}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the encoder's blocks."""
        return list(cast("TextEncoder", model).blocks)


class TextEncoder(nn.Module):
    """Learned positions, pre-norm blocks without a causal mask, mean over the text, linear head.

    Without blocks there are no positions: a mean has no order. Shapes: B texts of up to T tokens of
    width D; K classes. `initial_output` is the head's bias.
    """

    def __init__(self, options: TextEncoderOptions, initial_output: Tensor) -> None:
        super().__init__()
        names = ("vocab_size", "context_length", "heads", "width", "dropout")
        chosen = {name: getattr(options, name) for name in names}
        variant: Literal["gpt2", "llama"] = "gpt2" if options.layers else "llama"
        self.embedding = Embedding(DecoderOptions(variant=variant, **chosen))
        self.blocks = nn.ModuleList(
            TransformerBlock(options.width, options.heads, options.dropout)
            for _ in range(options.layers)
        )
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, len(initial_output))
        self._initialize(initial_output)

    def forward(self, tokens: Tensor, length: Tensor) -> Tensor:
        """Ids [B, T] of texts with `length` [B] tokens → logits [B, K]."""
        is_text = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, is_text[:, None, None])
        return cast("Tensor", self.head(self.pool(self.norm(hidden), is_text[:, :, None])))

    def pool(self, hidden: Tensor, is_text: Tensor) -> Tensor:
        """Mean over the text, [B, T, D] → [B, D]; padding has states too, and is left out."""
        return hidden.masked_fill(~is_text, 0.0).sum(dim=1) / is_text.sum(dim=1).to(hidden.dtype)

    @torch.no_grad()
    def _initialize(self, initial_output: Tensor) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, INITIAL_STD)
            elif name.endswith("bias"):
                parameter.zero_()
        self.head.bias.copy_(initial_output)


class TextClassification(OwnEncoder, TextClassifier):
    """One class for each text."""

    encoder = TextEncoder
