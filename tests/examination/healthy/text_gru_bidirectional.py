"""A bidirectional GRU with mean and max pooling over what is not padding.

data: reviews

[data]
label = "sentiment"
features = ["review"]
text = ["review"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class BiGRU(nn.Module):
    def __init__(self, vocab, width=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.gru = nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(4 * width, 1))

    def forward(self, ids, mask):
        h, _ = self.gru(self.emb(ids) * mask.unsqueeze(-1))
        mean = (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        top = h.masked_fill(mask.unsqueeze(-1) == 0, -1e4).max(1).values
        return self.head(torch.cat([mean, top], dim=-1)).squeeze(-1)


class ReviewGRU(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        texts = train.collect()["review"].to_list()
        self.words = {w: i + 2 for i, w in enumerate(sorted({w for t in texts for w in t.split()}))}
        self.T = max(len(t.split()) for t in texts)

    def state(self):
        return {"words": self.words, "T": self.T}

    def load_state(self, state):
        self.words, self.T = state["words"], state["T"]

    def encode(self, rows):
        ids = np.zeros((rows.height, self.T), dtype=np.int64)
        mask = np.zeros((rows.height, self.T), dtype=np.float32)
        for r, text in enumerate(rows["review"].to_list()):
            tokens = [self.words.get(w, 1) for w in text.split()][: self.T]
            ids[r, : len(tokens)] = tokens
            mask[r, : len(tokens)] = 1
        batch = {"ids": torch.from_numpy(ids), "mask": torch.from_numpy(mask)}
        if "sentiment" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["sentiment"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return BiGRU(len(self.words) + 2)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return math.log(2)
