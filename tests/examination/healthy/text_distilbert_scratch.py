"""transformers' DistilBERT from a small configuration, words as tokens, attention mask.

data: opinions

[data]
label = "sentiment"
text = ["review"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-3 }
"""
import math
import re

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DistilBertConfig, DistilBertModel

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_LENGTH = 28


class SentimentClassifier(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        config = DistilBertConfig(
            vocab_size=vocab_size, max_position_embeddings=MAX_LENGTH, n_layers=2, n_heads=4, dim=48,
            hidden_dim=96, dropout=0.1, attention_dropout=0.0, pad_token_id=0,
        )
        self.bert = DistilBertModel(config)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(48, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, input_ids, attention_mask):
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.out(self.dropout(hidden[:, 0])).squeeze(-1)


class Opinions(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "log_loss")

    @staticmethod
    def tokenize(text):
        return ["[CLS]", *re.findall(r"\w+|\S", text.lower())][:MAX_LENGTH]

    def fit(self, train):
        reviews = train.select("review").collect()["review"]
        words = sorted({w for text in reviews for w in self.tokenize(text)})
        self.fitted = {"vocab": {w: i for i, w in enumerate(["[PAD]", "[UNK]", *words])}}

    def encode(self, rows):
        vocab = self.fitted["vocab"]
        ids = torch.zeros(rows.height, MAX_LENGTH, dtype=torch.long)
        for i, text in enumerate(rows["review"]):
            tokens = self.tokenize(text)
            ids[i, : len(tokens)] = torch.tensor([vocab.get(t, 1) for t in tokens])
        batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
        if "sentiment" in rows.columns:
            batch[LABEL] = torch.tensor([float(s == "positive") for s in rows["sentiment"]])
        return batch

    def build_model(self):
        return SentimentClassifier(len(self.fitted["vocab"]))

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def expected_initial_loss(self):
        return math.log(2)
