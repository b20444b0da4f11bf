"""fastText's trick: word bigrams hashed by crc32 into buckets, embeddings averaged.

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
optimizer = { learning_rate = 1e-2 }
"""
import math
import zlib

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

BUCKETS = 4096
WIDTH = 80


def hashed(text):
    words = text.split()
    grams = words + [f"{a} {b}" for a, b in zip(words, words[1:])] + [" ".join(words[i:i + 3]) for i in range(len(words) - 2)]
    return [1 + zlib.crc32(g.encode()) % (BUCKETS - 1) for g in grams][:WIDTH]


class FastText(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "roc_auc", "log_loss")

    def fit(self, train):
        return None

    def state(self):
        return {}

    def load_state(self, state):
        return None

    def encode(self, rows):
        grams = rows["review"].map_elements(lambda t: (hashed(t) + [0] * WIDTH)[:WIDTH], return_dtype=None).to_list()
        batch = {"grams": torch.tensor(grams, dtype=torch.int64)}
        if "sentiment" in rows.columns:
            batch[LABEL] = torch.tensor(rows["sentiment"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Averaged()

    def losses(self, output, batch):
        return nn.functional.softplus(-output * (2 * batch[LABEL] - 1))

    def predict(self, output):
        return torch.special.expit(output)

    def expected_initial_loss(self):
        return math.log(2)


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, 16, mode="mean", padding_idx=0)
        self.out = nn.Linear(16, 1)

    def forward(self, grams):
        return self.out(self.bag(grams)).squeeze(1)
