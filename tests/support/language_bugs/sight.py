"""What is seen too early, or not at all: masks, examples, positions, texts and padding."""

import polars as pl
import torch
from torch import nn
from torch.nn import functional

from language_bugs.building import (
    GPT2,
    HF_BERT,
    HF_GPT2,
    Around,
    Core,
    Masked,
    Rebuilt,
    as_llama,
    language,
)
from language_variants import TopicOfDocument
from perennial.engine.task import LABEL, WEIGHT
from perennial.tasks.columns.tokenization import IGNORED
from perennial.tasks.language_modeling import TOKENS, CausalLanguageModel
from perennial.tasks.transformers_models import LogitsOf, TransformersCausalLM

# What is seen too early


@language("future_independence", "causal mask")
class NoMask(Masked):
    """attention has no causal mask"""

    mask = staticmethod(lambda ones: ones)


@language("future_independence", "causal mask", options=GPT2)
class NoMaskGPT2(NoMask):
    """attention has no causal mask, among learned positions"""


@language("future_independence", "causal mask")
class MaskTransposed(Masked):
    """the causal mask is transposed: every token sees itself and those after it"""

    mask = staticmethod(torch.triu)


@language("future_independence", "causal mask")
class MaskOffByOne(Masked):
    """the causal mask starts one diagonal too high"""

    mask = staticmethod(lambda ones: ones.tril(1))


@language("future_independence", "causal mask")
class MaskAdded(Masked):
    """a mask of zeros and ones is added to the scores in place of minus infinity"""

    mask = staticmethod(lambda ones: ones.tril().float())


@language("future_independence", "causal mask", material="texts", options=HF_BERT)
class EncoderAsDecoder(TransformersCausalLM):
    """an encoder of transformers is taken for a causal model: is_decoder is not set"""


class Unmasked(LogitsOf):
    def forward(self, tokens):
        mask = torch.zeros(len(tokens), 1, tokens.shape[1], tokens.shape[1])
        return self.model(input_ids=tokens.long(), attention_mask=mask, use_cache=False).logits


@language("future_independence", "causal mask", material="texts", options=HF_GPT2)
class OwnMask(TransformersCausalLM):
    """a mask of zeros takes the place of the causal one in a model of transformers"""

    def build_model(self):
        return Unmasked(super().build_model().model, 1)


@language("future_independence", "statistics over the sequence")
class NormalisedOverTime(Rebuilt):
    """the stream is normalised over the sequence instead of the features"""

    def changed(self, model):
        model.norm = Around(model.norm, before=lambda stream: stream - stream.mean(1, keepdim=True))
        return model


@language("future_independence", "convolutions with padding on both sides", options=GPT2)
class ConvolutionOfBothSides(Rebuilt):
    """a convolution over tokens is padded on both sides"""

    def changed(self, model):
        width = model.options.width
        model.mixing = nn.Conv1d(width, width, 3, padding=1)
        model.embedding = Around(
            model.embedding, after=lambda s: s + model.mixing(s.transpose(1, 2)).transpose(1, 2)
        )
        return model


@language("future_independence", "shift the labels", options=GPT2)
class UnshiftedLabels(CausalLanguageModel):
    """the label of a token is the token itself"""

    def encode(self, rows):
        batch = super().encode(rows)
        counts = batch[LABEL] != IGNORED
        return {**batch, LABEL: torch.where(counts, batch[TOKENS], IGNORED)}


# What an example may see


@language("example_independence", "mixes the batch")
class JoinedDocuments(Rebuilt):
    """the sequences of a batch are joined before the model reads them"""

    def changed(self, model):
        return Joined(model)


class Joined(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens.reshape(1, -1)).view(*tokens.shape, -1)


@language("example_independence", "attention over examples")
class AttentionOverExamples(Rebuilt):
    """attention runs over the batch instead of the sequence"""

    def changed(self, model):
        for block in model.blocks:
            block.attention = Around(
                block.attention,
                before=lambda stream: stream.transpose(0, 1),
                after=lambda stream: stream.transpose(0, 1),
            )
        return model


class TorchAttention(nn.Module):
    """torch's own attention, with or without `batch_first`."""

    def __init__(self, width, batch_first):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 2, batch_first=batch_first)

    def forward(self, stream):
        length = stream.shape[1 if self.inner.batch_first else 0]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.inner(stream, stream, stream, attn_mask=mask, need_weights=False)[0]


@language("example_independence", "batch_first", options=GPT2)
class BatchFirst(Rebuilt):
    """torch's attention runs without batch_first"""

    def changed(self, model):
        for block in model.blocks:
            block.attention = TorchAttention(32, batch_first=False)
        return model


@language("modes", "training=self.training|evaluation")
class DropoutAlways(Rebuilt):
    """dropout is on in evaluation, too"""

    def changed(self, model):
        model.norm = Around(model.norm, after=lambda stream: functional.dropout(stream, 0.1))
        return model


@language("encoding", "rows or labels are shifted")
class PackedDocuments(CausalLanguageModel):
    """a document begins with the end of the one before it"""

    def encode(self, rows):
        texts = rows[self.columns.label].fill_null("")
        packed = texts.shift(1).fill_null("").str.tail(4) + texts
        return super().encode(rows.with_columns(packed.alias(self.columns.label)))


@language("encoding", "rows or labels are shifted")
class LabelsOfOtherDocuments(CausalLanguageModel):
    """tokens are shuffled against the labels, document by document"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, TOKENS: batch[TOKENS].roll(1, 0)}


@language("serving_inputs", "columns.features only")
class IdInFront(CausalLanguageModel):
    """the document's id takes the place of its first token"""

    def encode(self, rows):
        batch = super().encode(rows)
        batch[TOKENS][:, 0] = torch.from_numpy(rows["id"].to_numpy() % 256)
        return batch


# Positions


@language("position_use", "position", outcome="warned")
class NoPositions(Rebuilt):
    """queries and keys are not rotated: the order of the tokens is not seen"""

    def changed(self, model):
        for block in model.blocks:
            block.attention.core.rotates = False
        return model


@language("position_use", "position", outcome="warned", options=GPT2)
class EveryPositionZero(Rebuilt):
    """every token stands at position 0"""

    def changed(self, model):
        model.embedding = AtZero(model.embedding)
        return model


class AtZero(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, tokens, positions=None):
        return self.embedding(tokens, torch.zeros(tokens.shape[1], dtype=torch.long))


@language("position_use", "axis", outcome="warned")
class RotatedOverHeads(Masked):
    """rotary embedding runs over the heads instead of the positions"""

    def changed(self, model):
        for block in model.blocks:
            block.attention.core = Core(
                torch.tril, lambda heads: as_llama(heads.transpose(1, 2)).transpose(1, 2)
            )
        return model


@language("position_use", "keys", outcome="warned")
class KeysNotRotated(Rebuilt):
    """queries are rotated and keys are not"""

    def changed(self, model):
        for block in model.blocks:
            block.attention.core.rotates = False
            block.attention.query = Around(
                block.attention.query,
                after=lambda query: as_llama(query.unflatten(-1, (2, 16))).flatten(2),
            )
        return model


# What is read of the text, and what is padding


@language("text_coverage", "cut", outcome="warned")
class ContextCut(CausalLanguageModel):
    """texts are cut after eight characters, though the context has room for more"""

    def encode(self, rows):
        short = pl.col(self.columns.label).str.head(8)
        return super().encode(rows.with_columns(short))


@language("text_coverage", "unknown", outcome="warned")
class UnknownFlood(CausalLanguageModel):
    """a vocabulary of another language makes most words unknown"""

    def encode(self, rows):
        foreign = pl.col(self.columns.label).str.replace_all(r"[a-z]+", "?")
        return super().encode(rows.with_columns(foreign))


@language("padding_independence", "attention mask", outcome="warned", options=GPT2)
class PaddedOnTheLeft(CausalLanguageModel):
    """documents are padded on the left and the padding is attended to"""

    def encode(self, rows):
        batch = super().encode(rows)
        for name in (TOKENS, LABEL):
            batch[name] = torch.stack(
                [
                    row.roll(24 - int(length))
                    for row, length in zip(batch[name], batch[WEIGHT], strict=True)
                ]
            )
        return batch


@language(
    "padding_independence", "attention mask", outcome="warned", material="topics",
    options={"context_length": 48},
)  # fmt: skip
class MaskForgotten(TopicOfDocument):
    """an encoder of transformers gets no padding mask"""

    def encode(self, rows):
        return {**super().encode(rows), "mask": torch.ones(rows.height, 48, dtype=torch.long)}
