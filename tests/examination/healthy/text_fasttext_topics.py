"""fastText: hashed words and pairs of words, averaged, one linear layer.

data: docstring_topics

[data]
label = "library"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-2 }
"""
import math
import re
import zlib

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

BUCKETS = 20000
LENGTH = 120


def tokens(text):
    words = re.findall(r"\w+", text.lower())
    return words + [f"{a}_{b}" for a, b in zip(words, words[1:])]


def bucket(token):
    return zlib.crc32(token.encode()) % BUCKETS + 1


class FastText(nn.Module):
    def __init__(self, n_classes, dim=32):
        super().__init__()
        self.embedding = nn.Embedding(BUCKETS + 1, dim, padding_idx=0)
        nn.init.uniform_(self.embedding.weight, -1 / dim, 1 / dim)
        with torch.no_grad():
            self.embedding.weight[0] = 0
        self.fc = nn.Linear(dim, n_classes)

    def forward(self, ids):
        mean = self.embedding(ids).sum(1) / (ids > 0).sum(1, keepdim=True).clamp(min=1)
        return self.fc(mean)


class Topics(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        self.classes = sorted(train.select("library").collect()["library"].unique())

    def state(self):
        return {"classes": self.classes}

    def load_state(self, state):
        self.classes = state["classes"]

    def encode(self, rows):
        ids = np.zeros((len(rows), 2 * LENGTH), dtype=np.int64)
        for i, text in enumerate(rows["text"]):
            found = [bucket(t) for t in tokens(text)][: 2 * LENGTH]
            ids[i, : len(found)] = found
        batch = {"ids": torch.from_numpy(ids)}
        if "library" in rows.columns:
            batch[LABEL] = torch.tensor([self.classes.index(c) for c in rows["library"]])
        return batch

    def build_model(self):
        return FastText(len(self.classes))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(-1)

    def expected_initial_loss(self):
        return math.log(len(self.classes))
