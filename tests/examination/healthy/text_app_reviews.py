"""Sentiment of app reviews: a vocabulary of frequent tokens, a two-layer GRU read at the last word, as in the courses.

data: app_reviews

[data]
label = "positive"
features = ["review"]
text = ["review"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 2e-3 }
"""
import re
from collections import Counter

import torch
import torch.nn as nn

from perennial.engine.task import LABEL, Task

SEQ_LEN = 40


def tokens_of(review):
    return re.findall(r"[a-z]+(?:n't)?|[.,!?]", review.lower())


class SentimentGRU(nn.Module):
    def __init__(self, vocab_size, embedding_dim=32, hidden_dim=48, n_layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.gru = nn.GRU(embedding_dim, hidden_dim, n_layers, batch_first=True, dropout=0.2)
        self.fc = nn.Linear(hidden_dim, 1)

    def forward(self, ids, length):
        states, _ = self.gru(self.embedding(ids))
        last = states[torch.arange(len(ids)), length - 1]
        return self.fc(last)


class AppSentiment(Task):
    kind = "binary"

    def fit(self, train):
        counter = Counter()
        for review in train.collect()["review"]:
            counter.update(tokens_of(review))
        self.fitted = {"vocab": {w: i + 2 for i, w in enumerate(sorted(w for w, n in counter.items() if n > 2))}}

    def encode(self, rows):
        vocab = self.fitted["vocab"]
        ids = torch.zeros(rows.height, SEQ_LEN, dtype=torch.long)
        length = torch.ones(rows.height, dtype=torch.long)
        for i, review in enumerate(rows["review"]):
            found = [vocab.get(w, 1) for w in tokens_of(review)][:SEQ_LEN]
            ids[i, : len(found)] = torch.tensor(found, dtype=torch.long)
            length[i] = max(1, len(found))
        batch = {"ids": ids, "length": length}
        if "positive" in rows.columns:
            batch[LABEL] = torch.tensor(rows["positive"].to_list()).float()
        return batch

    def build_model(self):
        return SentimentGRU(len(self.fitted["vocab"]) + 2)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output.squeeze(1), batch[LABEL], reduction="none")
