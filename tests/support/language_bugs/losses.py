"""What is asked of each position, what counts in the loss, and how it is measured."""

import math

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.nn import functional

from language_bugs.building import (
    GPT2,
    Rebuilt,
    Relabelled,
    language,
)
from perennial.engine.task import LABEL, WEIGHT
from perennial.tasks.columns.tokenization import BOUNDARY, IGNORED
from perennial.tasks.language_modeling import TOKENS, CausalLanguageModel

# What is asked of each position


@language("next_token", "wrong direction")
class PredictsThePast(Relabelled):
    """labels are shifted in the wrong direction: the token before is predicted"""

    def relabelled(self, tokens, labels):
        past = torch.where(labels != IGNORED, tokens.roll(1, 1), IGNORED)
        past[:, 0] = IGNORED
        return past


@language("next_token", "shifted twice")
class ShiftedTwice(Relabelled):
    """labels are shifted twice by encode"""

    def relabelled(self, tokens, labels):
        return functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


@language("next_token", "shifted twice", options=GPT2)
class ShiftedByTheLossToo(CausalLanguageModel):
    """labels that encode has shifted are shifted by the loss once more"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, WEIGHT: (batch[LABEL][:, 1:] != IGNORED).sum(1).float()}

    def losses(self, output, batch):
        shifted = {**batch, LABEL: batch[LABEL][:, 1:]}
        return super().losses(output[:, :-1], shifted)


@language("next_token", "shuffled", outcome="warned")
class TokensShuffled(CausalLanguageModel):
    """the tokens of a document are shuffled after its labels are made"""

    def encode(self, rows):
        batch = super().encode(rows)
        order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
        return {**batch, TOKENS: batch[TOKENS][:, order]}


@language("next_token", "different vocabularies", outcome="warned")
class TwoVocabularies(CausalLanguageModel):
    """inputs and labels are coded by two vocabularies"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, TOKENS: (batch[TOKENS] + 7) % 257}


def cross_entropy(logits, batch):
    """Mean over tokens; logits [B, V, T]."""
    losses = functional.cross_entropy(
        logits, batch[LABEL].long(), reduction="none", ignore_index=IGNORED
    )
    return losses.sum(1) / (batch[LABEL] != IGNORED).sum(1).clamp_min(1)


@language("next_token", "view or reshape")
class ViewForPermute(CausalLanguageModel):
    """logits [B, T, V] are viewed as [B, V, T] where the loss needs them permuted"""

    def losses(self, output, batch):
        return cross_entropy(output.reshape(len(output), output.shape[2], output.shape[1]), batch)


# What counts in the loss


@language("example_weights", "padding")
class PaddingCounts(CausalLanguageModel):
    """padding is a token like any other in the loss"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: batch[LABEL].masked_fill(batch[LABEL] == IGNORED, BOUNDARY)}


@language("example_weights", "padding")
class PaddingCountsAndWeighs(Relabelled):
    """padding is a token like any other in the loss and in the weights"""

    def relabelled(self, tokens, labels):
        return labels.masked_fill(labels == IGNORED, BOUNDARY)


@language("example_weights", "padding")
class WeightsOfCharacters(CausalLanguageModel):
    """a document weighs as many tokens as the context has, however long it is"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, WEIGHT: torch.full_like(batch[WEIGHT], batch[LABEL].shape[1])}


@language("example_weights", "number of tokens", outcome="warned")
class DocumentsCountAlike(CausalLanguageModel):
    """the loss is a mean over documents instead of tokens"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {TOKENS: batch[TOKENS], LABEL: batch[LABEL]}


@language("example_weights", "last token may be learned", outcome="warned")
class LastTokenOnly(Relabelled):
    """only the last token of each document is learned"""

    def relabelled(self, tokens, labels):
        ends = (labels != IGNORED).sum(1, keepdim=True) - 1
        return torch.where(torch.arange(labels.shape[1]) == ends, labels, IGNORED)


@language("example_weights", "padding")
class LastTokenOfTheLoss(CausalLanguageModel):
    """the loss reads the last position alone, the weights count all"""

    def losses(self, output, batch):
        ends = (batch[LABEL] != IGNORED).sum(1) - 1
        rows = torch.arange(len(ends))
        return functional.cross_entropy(
            output[rows, ends], batch[LABEL][rows, ends].long(), reduction="none"
        )


# The loss


@language("loss_floor", "softmax is applied")
class SoftmaxTwice(CausalLanguageModel):
    """a softmax is applied before the loss that applies one"""

    def losses(self, output, batch):
        return super().losses(output.softmax(-1), batch)


@language("loss_floor", "label smoothing", outcome="warned")
class HiddenSmoothing(CausalLanguageModel):
    """labels are smoothed in the loss that is reported, too"""

    def losses(self, output, batch):
        losses = functional.cross_entropy(
            output.transpose(1, 2), batch[LABEL].long(), reduction="none",
            ignore_index=IGNORED, label_smoothing=0.1,
        )  # fmt: skip
        return losses.sum(1) / (batch[LABEL] != IGNORED).sum(1)


@language("loss_not_clipped", "clipped")
class ClippedLoss(CausalLanguageModel):
    """a document's loss is clipped at 4"""

    def losses(self, output, batch):
        return super().losses(output, batch).clamp(max=4.0)


@language("initial_loss", "softmax run over dimension 1")
class SoftmaxOverTime(CausalLanguageModel):
    """the softmax runs over the positions instead of the tokens"""

    def losses(self, output, batch):
        counts = batch[LABEL] != IGNORED
        chosen = output.log_softmax(1).gather(2, batch[LABEL].clamp_min(0).long()[..., None])
        return -(chosen[..., 0] * counts).sum(1) / counts.sum(1)


@language("initial_loss", "is it a sum")
class SummedLosses(CausalLanguageModel):
    """the loss is the sum over a document's tokens, which its weight then counts again"""

    def losses(self, output, batch):
        return super().losses(output, batch) * batch[WEIGHT]


@language("per_example_losses", "reduction='none'")
class MeanOfTheBatch(CausalLanguageModel):
    """the loss is averaged over the batch"""

    def losses(self, output, batch):
        return super().losses(output, batch).mean()


@language("initial_loss", "number of classes")
class SmallerTheory(CausalLanguageModel):
    """the first loss is expected of 26 letters"""

    def expected_initial_loss(self):
        return math.log(26)


@language("initial_loss", "number of classes", options=GPT2)
class LargerVocabulary(Rebuilt):
    """the output has four times as many tokens as there are"""

    def changed(self, model):
        model.head = nn.Linear(32, 4 * 257, bias=False)
        nn.init.normal_(model.head.weight, std=0.02)
        return model


@language("per_example_losses", "notebook")
class SmallerVocabulary(Rebuilt):
    """the embedding has fewer rows than there are tokens"""

    def changed(self, model):
        model.embedding.tokens = nn.Embedding(128, 32)
        return model


@language("initial_loss", "initial weights are too large")
class HugeInit(Rebuilt):
    """the output layer starts fifty times too large"""

    def changed(self, model):
        model.head.weight.data.mul_(50)
        return model


# State, statistics and metrics


@language("state_round_trip", "state", options={"vocab_size": 300})
class MergesForgotten(CausalLanguageModel):
    """load_state forgets the byte pairs"""

    def load_state(self, state):
        super().load_state({})


@language("statistics_scope", "ignores its argument", options={"vocab_size": 300})
class LearnedElsewhere(CausalLanguageModel):
    """byte pairs are learned from other texts than the training split's"""

    def fit(self, train):
        other = ["the value of the axis of the array is the sum over the shape"] * 50
        super().fit(pl.LazyFrame({self.columns.label: other}))


@language("metric_direction", "average the statistics by them")
class UnweightedPerplexity(CausalLanguageModel):
    """perplexity is that of a mean over documents instead of tokens"""

    def score(self, predictions, labels):
        return super().score(predictions, np.ones(len(labels)))


@language("predictions", "measure each example by itself")
class StatisticOfTheBatch(CausalLanguageModel):
    """the statistic is measured against the batch's mean"""

    def statistic(self, output, batch):
        found = super().statistic(output, batch)
        return found / found.mean(dim=0)
