"""TripletMarginLoss over bags of words: nearer to its own library than to another.

data: text_triplets

[data]
label = "positive"
features = ["anchor", "positive", "negative"]
text = ["anchor", "positive", "negative"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import re
from collections import Counter

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class Encoder(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, 64, mode="mean", padding_idx=0)
        self.proj = nn.Sequential(nn.ReLU(), nn.Linear(64, dim))

    def embed(self, ids):
        return nn.functional.normalize(self.proj(self.bag(ids)), dim=1)

    def forward(self, anchor, negative, positive=None):
        positive = anchor if positive is None else positive
        return torch.stack([self.embed(anchor), self.embed(positive), self.embed(negative)], dim=1)


class Triplets(Task):
    kind = "statistic"
    metrics = {"triplet_accuracy": "maximize"}
    margin = 0.5

    def fit(self, train):
        counter = Counter()
        for text in train.select("anchor").collect()["anchor"]:
            counter.update(re.findall("[a-z]+", text.lower()))
        self.vocab = [w for w, _ in sorted(counter.most_common(1500))]

    def state(self):
        return {"vocab": self.vocab}

    def load_state(self, state):
        self.vocab = state["vocab"]

    def ids(self, column):
        table = {w: i + 1 for i, w in enumerate(self.vocab)}
        rows = [[table.get(w, 0) for w in re.findall("[a-z]+", t.lower())][:60] for t in column]
        return torch.tensor([r + [0] * (60 - len(r)) for r in rows])

    def encode(self, rows):
        batch = {"anchor": self.ids(rows["anchor"]), "negative": self.ids(rows["negative"])}
        if "positive" in rows.columns:
            batch["positive"] = self.ids(rows["positive"])
            batch[LABEL] = torch.zeros(len(rows))
        return batch

    def build_model(self):
        return Encoder(len(self.vocab) + 1)

    def losses(self, output, batch):
        a, p, n = output.unbind(dim=1)
        return torch.relu((a - p).square().sum(1) - (a - n).square().sum(1) + self.margin)

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        a, p, n = output.unbind(dim=1)
        return ((a - p).norm(dim=1) < (a - n).norm(dim=1)).double()

    def score(self, predictions, labels):
        return {"triplet_accuracy": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return self.margin
