"""Token classification: a tag for each word of a text, as in named-entity recognition.

Use it by name in a contract, `task = "perennial.tasks.token_classification:TokenClassification"`.
The one feature is a text, `EU rejects German calls`, the label its tags, `B-ORG O B-MISC O`: spaces
divide words and tags. Both columns are also named under `data.text`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from perennial.contracts.errors import BadDataError
from perennial.contracts.training import Direction
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Batch
from perennial.tasks.classification import SCORED_LOGITS, mean_token_losses
from perennial.tasks.columns.class_labels import ClassLabels, encode_classes, fit_classes
from perennial.tasks.columns.tokenization import IGNORED, Encoded
from perennial.tasks.entities import Tags
from perennial.tasks.text_classification import OwnEncoder, TextEncoder, TextTask

MOST_TAGS = 1000
UNREAD = "_"
"""Answered for a word that the model did not read, beyond `context_length` for instance."""
_WORD = re.compile(r"[^ ]+")
_JOIN = 'with polars: frame.with_columns(pl.col("COLUMN").list.join(" "))'


class TokenClassifier(TextTask):
    """Base: a text, and one of two or more tags for each of its words.

    Beside a text's tokens, a batch holds `label` int32 [B, T] and `weight` [B], the number of
    labelled words. The first token of a word has its tag; other tokens, padding, and words that
    were cut off have none. A model returns logits [B, T, K].
    """

    kind: Literal["statistic"] = "statistic"
    metrics: Mapping[str, Direction] = directions_of("mean_loss", "entity_f1", "token_accuracy")
    statistics: ClassVar[tuple[str, ...]] = (
        *("loss", "correct", "entity_hits", "entities", "predicted_entities"),
    )
    serves_predictions = True
    text_column: ClassVar[str] = (
        'name a text under `features` and `text` of [data], such as "EU rejects German calls"; '
        f"make one of a list of words {_JOIN}"
    )

    def fit_labels(self, train: pl.LazyFrame) -> ClassLabels:
        """Return the tags.

        Raises:
            BadDataError: the label is not text, or has fewer than two or very many tags.
        """
        name = self.columns.label
        self._require_text(train.select(name).head(0).collect()[name])
        # Lazily: a row for each word is many times as long as the table.
        tags = train.select(_divide(pl.col(name).cast(pl.String)).list.explode())
        found = fit_classes(tags, name)
        if len(found.classes) > MOST_TAGS:
            raise BadDataError(
                f"the label {name!r} has {len(found.classes):,} tags to learn",
                evidence=f"at most {MOST_TAGS:,} are possible; the first: {found.classes[:5]}",
                action="name the column of tags as data.label, not the text",
            )
        return found

    def encode_labels(
        self, labels: pl.Series, texts: Sequence[str], every: Sequence[Encoded]
    ) -> Batch:
        """`label` int32 [B, T] and `weight` float32 [B], the number of labelled words.

        Raises:
            BadDataError: a text has more or fewer tags than words, or a tag is new.
        """
        self._require_text(labels)
        tags = labels.to_frame().select(_divide(pl.col(labels.name).cast(pl.String))).to_series()
        counts = tags.list.len().fill_null(0).to_list()
        codes = encode_classes(tags.explode().drop_nulls(), self.fitted.classes)
        coded = np.full((len(texts), self.text_options.context_length), IGNORED, np.int32)
        ends = np.cumsum(counts)
        for row, (text, encoded, end) in enumerate(zip(texts, every, ends, strict=True)):
            places = find_first_tokens(text, encoded)
            if len(places) != counts[row]:
                raise _unequal(labels.name, text, len(places), tags[row])
            is_read = places >= 0
            # From behind: of two words in one token, which only foreign tokenizers make, the first.
            own = codes[end - counts[row] : end]
            coded[row, places[is_read][::-1]] = own[is_read][::-1]
        weights = (coded != IGNORED).sum(axis=1, dtype=np.float32)
        return {LABEL: torch.from_numpy(coded), WEIGHT: torch.from_numpy(weights)}

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy of each text's words, shape [B]."""
        return mean_token_losses(output, batch[LABEL])

    def training_losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss against smoothed labels; without smoothing, `losses`."""
        if not self.label_smoothing:
            return self.losses(output, batch)
        return mean_token_losses(output, batch[LABEL], self.label_smoothing)

    def predict(self, output: Tensor) -> Tensor:
        """Return the code of the most probable tag at each token, shape [B, T]."""
        return output.argmax(dim=-1)

    def statistic(self, output: Tensor, batch: Batch) -> Tensor:
        """Loss and share of right tags per word, and each text's entities: float64 [B, 5].

        Entities are counted over the words that were read: right, true and predicted ones.
        """
        labels, predicted = batch[LABEL], output.argmax(dim=-1)
        is_word = labels != IGNORED
        hits = (predicted == labels) & is_word
        shares = hits.sum(dim=1) / is_word.sum(dim=1).clamp_min(1)
        entities = self._tags.count(predicted, labels, is_word)
        losses = mean_token_losses(output, labels)
        return torch.cat(
            [losses[:, None].double(), shares[:, None].double(), entities.double()], dim=1
        )

    def exposure(
        self, statistics: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Words of each text that were read: what is cut off counts in no metric."""
        return weights

    def answer_texts(
        self, predictions: NDArray[np.float64], rows: pl.DataFrame
    ) -> Mapping[str, Sequence[str]]:
        """Return the tags of each text, `_` for words that were not read."""
        texts, names = self.read_texts(rows), np.array([*self.fitted.classes, UNREAD])
        answers = []
        for text, encoded, codes in zip(texts, self.read_tokens(texts), predictions, strict=True):
            places = find_first_tokens(text, encoded)
            tags = np.where(places >= 0, codes[places.clip(0)].astype(np.int64), -1)
            answers.append(" ".join(names[tags]))
        return {self.columns.label: answers}

    def describe_label(self, label: Tensor, ids: Sequence[int]) -> str:
        """Return each labelled word, as its tokens spell it, with its tag."""
        places = (label != IGNORED).nonzero()[:, 0].tolist()
        spelled = [
            self.decode_tokens(ids[start:end]).strip()
            for start, end in zip(places, [*places[1:], len(ids)], strict=True)
        ]
        tags = [self.fitted.classes[code] for code in label[places].tolist()]
        return " ".join(f"{word}/{tag}" for word, tag in zip(spelled, tags, strict=True))

    @property
    def scoring_rows(self) -> int:
        """Return as many rows as keep the logits within `SCORED_LOGITS`."""
        logits = self.text_options.context_length * max(len(self.fitted.classes), 1)
        return max(1, min(super().scoring_rows, SCORED_LOGITS // logits))

    @property
    def _tags(self) -> Tags:
        return Tags.read(self.fitted.classes)

    def _require_text(self, labels: pl.Series) -> None:
        if labels.dtype not in (pl.String, pl.Categorical):
            raise BadDataError(
                f"the label {labels.name!r} is {labels.dtype}, not text",
                action="write the tags of a text as one text, such as 'B-ORG O B-MISC O'; of a "
                f"list of tags {_JOIN}",
            )


class TokenEncoder(TextEncoder):
    """An encoder with a head for each token: logits [B, T, K]."""

    def pool(self, hidden: Tensor, is_text: Tensor) -> Tensor:
        """Return the states of all tokens, [B, T, D]."""
        return hidden


class TokenClassification(OwnEncoder, TokenClassifier):
    """A tag for each word, by a small encoder of its own."""

    encoder = TokenEncoder


def find_first_tokens(text: str, encoded: Encoded) -> NDArray[np.int64]:
    """Return the place of each word's first token, shape [words]; -1 where a word has none.

    That is the token with the word's first character, which may begin with the space before it.
    """
    words = np.array([match.span() for match in _WORD.finditer(text)], np.int64).reshape(-1, 2)
    offsets = np.asarray(encoded.offsets, np.int64).reshape(-1, 2)
    # Special tokens stand at 0; the last one must not break the order.
    ends = np.maximum.accumulate(offsets[:, 1])
    places = np.searchsorted(ends, words[:, 0], side="right")
    begins = np.append(offsets[:, 0], len(text))[places]
    return np.where(begins < words[:, 1], places, -1)


def _divide(column: pl.Expr) -> pl.Expr:
    """Return the parts between spaces, as lists."""
    return column.str.split(" ").list.eval(pl.element().filter(pl.element() != ""))


def _unequal(label: str, text: str, words: int, tags: Sequence[str]) -> BadDataError:
    return BadDataError(
        f"a text has {words} words, and {len(tags)} tags in {label!r}",
        evidence=f"words {text[:100]!r}, tags {' '.join(tags)[:100]!r}",
        action="write a tag for each word, both divided by one space; a word must not contain "
        "spaces",
    )
