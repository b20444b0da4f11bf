"""Language modeling: predict each token of a document from those before it.

Use it by name in a contract, `task = "perennial.tasks.language_modeling:CausalLanguageModel"`,
with the text column as `data.label`, as the one of `data.features`, and under `data.text`.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue
from torch import Tensor, nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.contracts.section import Section
from perennial.contracts.training import Direction
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import (
    LABEL,
    WEIGHT,
    Batch,
    MeasuredOptions,
    ParallelPlan,
    ParameterKeys,
    Task,
)
from perennial.tasks.classification import SCORED_LOGITS, mean_token_losses
from perennial.tasks.columns.document_tokenizer import DocumentTokenizer
from perennial.tasks.columns.tokenization import (
    IGNORED,
    SMALLEST_VOCABULARY,
    Tokenizer,
    texts_of,
)
from perennial.tasks.decoder import Decoder, DecoderOptions, decoder_plan

PositiveInt = Annotated[int, Field(ge=1)]
TOKENS = "tokens"


class DocumentOptions(MeasuredOptions):
    """Options that set how documents become examples."""

    vocab_size: Annotated[int, Field(ge=SMALLEST_VOCABULARY)] = SMALLEST_VOCABULARY
    """Token ids: 257 are the bytes and the boundary of documents; more are byte pairs, learned from
    the training split with the package `tokenizers`. Raise it to 1,000 to 50,000 when there is
    enough text: sequences get 2 to 5 times shorter, and the model's embedding larger."""
    context_length: PositiveInt = 256
    """Tokens of a sequence; a document longer than `windows` sequences is truncated. Raise it until
    few examples in the report of the sanity checks are truncated."""
    windows: PositiveInt = 1
    """Sequences per document. The model processes each separately, and all of them count as one
    example. Raise it when documents are longer than the context that you can afford."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Label smoothing: share of the target spread over all tokens; in training only. Rarely helpful
    above 0.1."""


class LanguageModelOptions(DocumentOptions, DecoderOptions):
    """How documents become examples, and the decoder that learns them."""


class LanguageModel(Task):
    """Base of causal language models: documents in, loss per token out.

    A batch holds `tokens` and `label`, int32 [B, W·T], and `weight` [B], the number of labels that
    count. Documents stand between boundaries and are padded on the right, where no label counts and
    a causal model cannot look.
    """

    Options = DocumentOptions
    kind: Literal["statistic"] = "statistic"
    metrics: Mapping[str, Direction] = directions_of("bits_per_byte", "perplexity")
    statistics: ClassVar[tuple[str, ...]] = ("loss", "bytes")
    invariant_metrics: ClassVar[frozenset[str]] = frozenset({"bits_per_byte"})
    tokens: ClassVar[str] = TOKENS

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.documents = cast("DocumentOptions", options)
        if set(columns.features) - {columns.label}:
            raise BadTaskError(
                f"{type(self).__name__} reads the label {columns.label!r} alone",
                evidence=f"the features are: {', '.join(columns.features)}",
                action=f"set data.features = [{columns.label!r}] in the contract",
            )
        self.take_tokenizer(Tokenizer())

    def fit(self, train: pl.LazyFrame) -> None:
        """Learn the byte pairs, if any are asked for."""
        texts = texts_of(train, self.columns.label)
        self.take_tokenizer(Tokenizer.learn(texts, self.documents.vocab_size))

    def state(self) -> dict[str, JsonValue]:
        """Return the byte pairs."""
        tokenizer = cast("Tokenizer", self.tokenizer)
        return {"merges": tokenizer.to_json()} if tokenizer.merges else {}

    def load_state(self, state: Mapping[str, JsonValue]) -> None:
        """Take over byte pairs."""
        self.take_tokenizer(Tokenizer.from_json(state.get("merges", [])))

    def encode(self, rows: pl.DataFrame) -> Batch:
        """`tokens` and `label` int32 [B, W·T], `weight` float32 [B]; the label is the text."""
        length = self.documents.context_length * self.documents.windows
        first, last = self.tokenizer.first, self.tokenizer.last
        tokens = np.full((rows.height, length), last, dtype=np.int32)
        labels = np.full((rows.height, length), IGNORED, dtype=np.int32)
        texts = rows[self.columns.label].fill_null("").to_list()
        for row, ids in enumerate(self.tokenizer.encode(texts)):
            # Position t holds token t and is labelled with token t + 1.
            document = np.concatenate([[first], ids[:length], [last]])[: length + 1]
            tokens[row, : len(document) - 1] = document[:-1]
            labels[row, : len(document) - 1] = document[1:]
        weights = (labels != IGNORED).sum(axis=1, dtype=np.float32)
        return {
            TOKENS: torch.from_numpy(tokens),
            LABEL: torch.from_numpy(labels),
            WEIGHT: torch.from_numpy(weights),
        }

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build a model of `tokens` [B, W·T] → logits [B, W·T, V] of the tokens after them."""

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy of each document's tokens, shape [B]."""
        return mean_token_losses(output, batch[LABEL])

    def training_losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss with smoothed labels; without smoothing, `losses`."""
        smoothing = self.documents.label_smoothing
        if not smoothing:
            return self.losses(output, batch)
        return mean_token_losses(output, batch[LABEL], smoothing)

    def statistic(self, output: Tensor, batch: Batch) -> Tensor:
        """Loss per token and raw bytes per token of each document, float64 [B, 2].

        The bytes are those of the text as far as it was predicted: `encode` refuses tokens that do
        not spell the whole of it.
        """
        labels, tokenizer = batch[LABEL], self.tokenizer
        counts = labels != IGNORED
        lengths = self.token_bytes.to(output.device)[labels.clamp_min(0).long()] * counts
        # The end of a document is its first label where there is no text.
        prefix = tokenizer.prefix * (counts[:, 0] & (labels[:, 0] != tokenizer.last))
        per_token = (lengths.sum(dim=1) - prefix) / counts.sum(dim=1).clamp_min(1)
        return torch.stack([mean_token_losses(output, labels).double(), per_token], dim=1)

    def predict(self, output: Tensor) -> Tensor:
        """Return the most probable token after each of the tokens, shape [B, W·T]."""
        return output.argmax(dim=-1)

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return the names of the statistic."""
        return ("loss_per_token", "bytes_per_token")

    def exposure(
        self, statistics: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Bytes of each document that were predicted: what is cut off counts in no metric."""
        # What was divided by the tokens is a whole number again.
        return np.rint(statistics[:, 1] * weights)

    def expected_initial_loss(self) -> float:
        """Return the loss if every token is equally likely."""
        return math.log(self.documents.vocab_size)

    def describe(self, batch: Batch, index: int) -> dict[str, str]:
        """Return the text that is predicted, and how many of its tokens count."""
        labels = batch[LABEL][index].tolist()
        counted = [label for label in labels if label != IGNORED]
        is_cut = self.tokenizer.last not in counted
        return {
            self.columns.label: self.tokenizer.decode(counted),
            TOKENS: f"{len(counted)}{', cut' if is_cut else ''}",
        }

    @property
    def scoring_rows(self) -> int:
        """Return as many rows as keep the logits within `SCORED_LOGITS`."""
        documents = self.documents
        logits = documents.context_length * documents.windows * documents.vocab_size
        return max(1, min(super().scoring_rows, SCORED_LOGITS // logits))

    def token_keys(self, name: str) -> ParameterKeys:
        """Return the keys of a matrix with a row for each token: its bytes."""
        return ParameterKeys(name, (self.tokenizer.keys(self.documents.vocab_size), None))

    def take_tokenizer(self, tokenizer: Tokenizer | DocumentTokenizer) -> None:
        """Read and predict its tokens from now on."""
        self.tokenizer = tokenizer
        lengths = torch.zeros(self.documents.vocab_size, dtype=torch.float64)
        lengths[: len(tokenizer.lengths)] = torch.from_numpy(tokenizer.lengths)
        self.token_bytes = lengths


class CausalLanguageModel(LanguageModel):
    """The reference decoder, as Llama or GPT-2 build it."""

    Options = LanguageModelOptions

    def build_model(self) -> nn.Module:
        """Build a decoder."""
        return DocumentDecoder(cast("LanguageModelOptions", self.options))

    def parameter_keys(self) -> Mapping[str, ParameterKeys]:
        """Return the keys of embedding and last layer: the tokens."""
        names = {"embedding.tokens.weight": "token embedding", "head.weight": "outputs"}
        return {name: self.token_keys(title) for name, title in names.items()}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the decoder's blocks."""
        return list(cast("Decoder", model).blocks)

    def parallel_plan(self) -> ParallelPlan | None:
        """Return the decoder's plan; None for several windows, which are not one sequence."""
        options = cast("LanguageModelOptions", self.options)
        return decoder_plan(options, inputs=TOKENS) if options.windows == 1 else None

    def auxiliary_losses(self, model: nn.Module) -> Tensor | None:
        """Return how unequally experts were used; None without experts."""
        losses = cast("DocumentDecoder", model).balance_losses()
        windows = self.documents.windows
        return losses if losses is None else losses.view(-1, windows).mean(dim=1)


class DocumentDecoder(Decoder):
    """A decoder that sees each window of a document by itself."""

    def __init__(self, options: LanguageModelOptions) -> None:
        super().__init__(options)
        self.windows = options.windows

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits [B, W·T, vocabulary] after each of the tokens [B, W·T]."""
        if self.windows == 1:
            return super().forward(tokens, positions)
        logits = super().forward(tokens.view(len(tokens) * self.windows, -1), positions)
        return logits.view(*tokens.shape, -1)
