"""How easy an excerpt is to read (Kaggle's CommonLit), in fast.ai's manner: an embedding bag and a
few counts, a head that ends in a sigmoid over the range of scores.

data: graded_excerpts

[data]
label = "target"
ids = ["row_id"]
text = ["excerpt"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""

import math
import re
from collections import Counter

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SEQ_LEN = 180
PAD, UNK = 0, 1
y_range = (-4.0, 2.0)


def words(text):
    return re.findall(r"[a-z]+", text.lower())


def syllables(word):
    return max(1, len(re.findall(r"[aeiouy]+", word)))


def counts_of(text):
    toks = words(text)
    n_sentences = max(1, len(re.findall(r"[.!?]", text)))
    per_word = sum(map(syllables, toks)) / max(1, len(toks))
    return [
        len(toks) / n_sentences,
        per_word,
        sum(len(t) > 8 for t in toks) / max(1, len(toks)),
        math.log1p(len(toks)),
    ]


class Readability(Task):
    kind = "regression"
    metrics = {"pearson": "maximize"} | directions_of("rmse", "mae")

    def fit(self, train):
        df = train.collect()
        c = Counter(t for text in df["excerpt"] for t in set(words(text)))
        cont = np.array([counts_of(t) for t in df["excerpt"]])
        self.fitted = {
            "vocab": sorted(t for t, n in c.items() if n > 3),
            "means": cont.mean(0).tolist(),
            "stds": cont.std(0).tolist(),
        }

    def encode(self, rows):
        o2i = {t: i for i, t in enumerate(self.fitted["vocab"], start=2)}
        toks = torch.full((rows.height, SEQ_LEN), PAD)
        for i, text in enumerate(rows["excerpt"]):
            ids = [o2i.get(t, UNK) for t in words(text)][:SEQ_LEN]
            toks[i, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        cont = np.array([counts_of(t) for t in rows["excerpt"]])
        cont = (cont - self.fitted["means"]) / self.fitted["stds"]
        b = {"toks": toks, "cont": torch.tensor(cont, dtype=torch.float32)}
        if "target" in rows.columns:
            b[LABEL] = torch.tensor(rows["target"].to_list(), dtype=torch.float32)
        return b

    def build_model(self):
        return ReadabilityLearner(len(self.fitted["vocab"]) + 2)

    def losses(self, output, batch):
        return nn.functional.mse_loss(output, batch[LABEL], reduction="none")

    def score(self, predictions, labels):
        found = super().score(predictions, labels)
        if len(labels) > 1 and predictions.std() > 0 and labels.std() > 0:
            found["pearson"] = float(np.corrcoef(predictions, labels)[0, 1])
        return found


class ReadabilityLearner(nn.Module):
    def __init__(self, n_vocab, emb_sz=16, n_cont=4):
        super().__init__()
        self.bag = nn.EmbeddingBag(n_vocab, emb_sz, mode="mean", padding_idx=PAD)
        self.layers = nn.Sequential(
            nn.Linear(emb_sz + n_cont, 50), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(50, 1)
        )

    def forward(self, toks, cont):
        x = torch.cat([self.bag(toks), cont], 1)
        lo, hi = y_range
        return torch.sigmoid(self.layers(x)).squeeze(-1) * (hi - lo) + lo
