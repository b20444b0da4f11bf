"""Moods of hotel reviews: a GRU with attention pooling, classes weighed by their inverse frequency in training.

data: hotel_reviews

[data]
label = "mood"
features = ["review"]
text = ["review"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import re

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAXLEN = 36


def tokenize(text):
    return re.findall(r"[a-z]+", text.lower())


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self.context = nn.Linear(dim, 1, bias=False)

    def forward(self, h, mask):
        score = self.context(torch.tanh(self.proj(h))).squeeze(-1)  # [batch, time]
        score = score.masked_fill(~mask, -1e4)
        alpha = torch.softmax(score, dim=1)
        return (alpha.unsqueeze(-1) * h).sum(dim=1)


class AttentiveGRU(nn.Module):
    def __init__(self, vocab_size, n_classes):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 32, padding_idx=0)
        self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.attention = Attention(64)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(64, n_classes)

    def forward(self, word_ids):
        h, _ = self.gru(self.embedding(word_ids))
        return self.out(self.drop(self.attention(h, word_ids > 0)))


class HotelMoods(Task):
    kind = "multiclass"
    metrics = directions_of("balanced_accuracy", "macro_f1", "accuracy")

    def fit(self, train):
        df = train.collect()
        words = sorted({w for review in df["review"] for w in tokenize(review)})
        moods = sorted(df["mood"].unique())
        counts = dict(df["mood"].value_counts(sort=True).iter_rows())
        weights = [len(df) / (len(moods) * counts[m]) for m in moods]
        self.fitted = {"words": words, "moods": moods, "weights": weights}

    def encode(self, rows):
        index = {w: i for i, w in enumerate(self.fitted["words"], start=2)}
        padded = []
        for review in rows["review"]:
            ids = [index.get(w, 1) for w in tokenize(review)][-MAXLEN:]
            padded.append(ids + [0] * (MAXLEN - len(ids)))
        batch = {"word_ids": torch.tensor(padded)}
        if "mood" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["moods"].index(m) for m in rows["mood"]])
        return batch

    def build_model(self):
        return AttentiveGRU(len(self.fitted["words"]) + 2, len(self.fitted["moods"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        weight = torch.tensor(self.fitted["weights"])
        return nn.functional.cross_entropy(output, batch[LABEL], weight=weight, reduction="none")
