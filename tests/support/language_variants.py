"""Unusual but healthy models of language: other shifts, prompts, encoders of `transformers`."""

import importlib
import math
from typing import ClassVar

import torch
from torch.nn import functional

from perennial.engine.task import LABEL, WEIGHT, Task
from perennial.tasks.columns.tokenization import IGNORED
from perennial.tasks.language_modeling import TOKENS, CausalLanguageModel, DocumentOptions

BERT_SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 48,
}  # fmt: skip
DISTILBERT_SIZES = {
    "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 48,
}  # fmt: skip


class ShiftsInTheLoss(CausalLanguageModel):
    """Labels are the tokens themselves; the loss shifts them, as models of transformers do."""

    def encode(self, rows):
        batch = super().encode(rows)
        whole = torch.cat([batch[TOKENS][:, :1], batch[LABEL][:, :-1]], dim=1)
        weights = (whole[:, 1:] != IGNORED).sum(dim=1).float()
        return {TOKENS: batch[TOKENS], LABEL: whole, WEIGHT: weights}

    def losses(self, output, batch):
        return super().losses(output[:, :-1], {**batch, LABEL: batch[LABEL][:, 1:]})

    def statistic(self, output, batch):
        return super().statistic(output[:, :-1], {**batch, LABEL: batch[LABEL][:, 1:]})


class OnlyAnswers(CausalLanguageModel):
    """The first word is a prompt that is not learned."""

    def encode(self, rows):
        batch = super().encode(rows)
        labels = batch[LABEL].masked_fill(torch.arange(batch[LABEL].shape[1]) < 4, IGNORED)
        return {**batch, LABEL: labels, WEIGHT: (labels != IGNORED).sum(dim=1).float()}


class EncoderOptions(DocumentOptions):
    """How texts become tokens."""

    model_type: str = "bert"
    """An encoder of the package `transformers`."""


class TopicOfDocument(Task):
    """Whether a document speaks of the topic: an encoder of `transformers`, made by its config."""

    Options = EncoderOptions
    kind = "binary"
    metrics: ClassVar = {"accuracy": "maximize"}

    def fit(self, train):
        self.share = train.select(self.columns.label).mean().collect().item()

    def state(self):
        return {"share": self.share}

    def load_state(self, state):
        self.share = state["share"]

    def encode(self, rows):
        length = self.options.context_length
        tokens = torch.zeros(rows.height, length, dtype=torch.long)
        for row, text in enumerate(rows["text"]):
            codes = torch.tensor([1, *(byte + 2 for byte in text.encode())])[:length]
            tokens[row, : len(codes)] = codes
        batch = {TOKENS: tokens, "mask": (tokens != 0).long()}
        if self.columns.label in rows.columns:
            batch[LABEL] = rows[self.columns.label].to_torch()
        return batch

    def build_model(self):
        package = importlib.import_module("transformers")
        sizes = {"bert": BERT_SIZES, "distilbert": DISTILBERT_SIZES}[self.options.model_type]
        config = package.AutoConfig.for_model(
            self.options.model_type, vocab_size=258, num_labels=1, pad_token_id=0, **sizes
        )
        model = package.AutoModelForSequenceClassification.from_config(config)
        torch.nn.init.constant_(model.classifier.bias, math.log(self.share / (1 - self.share)))
        return TopicLogit(model)

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(
            output, batch[LABEL].float(), reduction="none"
        )

    def predict(self, output):
        return torch.sigmoid(output)

    def score(self, predictions, labels):
        return {"accuracy": float(((predictions > 0.5) == (labels > 0.5)).mean())}

    def expected_initial_loss(self):
        return -self.share * math.log(self.share) - (1 - self.share) * math.log(1 - self.share)


class TopicLogit(torch.nn.Module):
    """The logit alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, mask):
        return self.model(input_ids=tokens, attention_mask=mask).logits[:, 0]
