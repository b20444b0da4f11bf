"""Spam by a bag of words: the thousand most frequent tokens and some counts of characters, logistic regression in PyTorch.

data: sms

[data]
label = "kind"
features = ["message"]
text = ["message"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-2, weight_decay = 0.01 }
"""
import re
from collections import Counter

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

VOCABULARY = 1000


def words(message):
    message = re.sub(r"£\d+", " moneysymb ", message.lower())
    message = re.sub(r"\b\d{5}\b", " shortcode ", message)
    return re.findall(r"[a-z]+", message)


class LogisticRegression(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.linear = nn.Linear(n_features, 1)

    def forward(self, counts):
        return self.linear(counts).squeeze(1)


class SpamFilter(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "log_loss", "accuracy")

    def fit(self, train):
        counts = Counter(w for message in train.collect()["message"] for w in words(message))
        top = sorted(counts, key=lambda w: (-counts[w], w))[:VOCABULARY]
        self.fitted = {"words": top}

    def encode(self, rows):
        index = {w: i for i, w in enumerate(self.fitted["words"])}
        X = np.zeros((len(rows), len(index) + 3), dtype=np.float32)
        for i, message in enumerate(rows["message"]):
            for w in words(message):
                if w in index:
                    X[i, index[w]] += 1
            letters = sum(c.isalpha() for c in message) or 1
            X[i, -3] = sum(c.isupper() for c in message) / letters
            X[i, -2] = message.count("!")
            X[i, -1] = len(message) / 100
        X[:, :-3] = np.log1p(X[:, :-3])
        batch = {"counts": torch.from_numpy(X)}
        if "kind" in rows.columns:
            batch[LABEL] = torch.tensor([float(k == "spam") for k in rows["kind"]])
        return batch

    def build_model(self):
        return LogisticRegression(len(self.fitted["words"]) + 3)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
