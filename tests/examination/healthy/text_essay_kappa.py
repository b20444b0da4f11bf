"""Essay scoring as in the competitions: word vectors from co-occurrences are frozen, a bounded regression, quadratic kappa.

data: essays

[data]
label = "grade"
features = ["essay", "topic"]
text = ["essay"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3, weight_decay = 0.05 }
"""
from collections import Counter

import numpy as np
import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_LEN = 96
DIM = 20
LOW, HIGH = 1, 6


def quadratic_weighted_kappa(a, b):
    a, b = a.astype(int) - LOW, b.astype(int) - LOW
    n = HIGH - LOW + 1
    O = np.zeros((n, n))
    np.add.at(O, (a, b), 1)
    w = (np.arange(n)[:, None] - np.arange(n)[None]) ** 2
    E = np.outer(O.sum(1), O.sum(0)) / O.sum()
    return 1 - (w * O).sum() / (w * E).sum()


def ppmi_vectors(docs, vocab):
    """Positive pointwise mutual information within five words, then a truncated SVD."""
    ix = {w: i for i, w in enumerate(vocab)}
    C = np.ones((len(vocab), len(vocab))) * 0.1
    for doc in docs:
        ids = [ix[w] for w in doc if w in ix]
        for gap in range(1, 6):
            np.add.at(C, (ids[:-gap], ids[gap:]), 1)
    C = C + C.T
    P = C / C.sum()
    ppmi = np.maximum(np.log(P / (P.sum(1, keepdims=True) * P.sum(0, keepdims=True))), 0)
    U, S, _ = np.linalg.svd(ppmi)
    V = U[:, :DIM] * np.sqrt(S[:DIM])
    return V / V.std()


class EssayNet(nn.Module):
    def __init__(self, vectors, start):
        super().__init__()
        table = torch.cat([torch.zeros(2, DIM), torch.tensor(vectors, dtype=torch.float32)])
        self.vectors = nn.Embedding.from_pretrained(table, freeze=True, padding_idx=0)
        self.gate = nn.Linear(DIM, 16)
        self.value = nn.Linear(DIM, 16)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Sequential(nn.Linear(16 + 3, 24), nn.ReLU(), nn.Linear(24, 1))
        nn.init.constant_(self.head[-1].bias, start)

    def forward(self, tokens, stats):
        e = self.vectors(tokens)
        mask = (tokens > 1).unsqueeze(-1).float()
        h = torch.sigmoid(self.gate(e)) * torch.tanh(self.value(e)) * mask
        pooled = h.sum(1) / mask.sum(1).clamp(min=1)
        x = torch.cat([3 * pooled, stats], dim=1)
        z = self.head(self.dropout(x)).squeeze(1)
        return (LOW - 0.5) + (HIGH - LOW + 1) * torch.sigmoid(z)


class EssayScoring(Task):
    kind = "regression"
    metrics = {"kappa": "maximize", **directions_of("rmse", "mae")}

    def fit(self, train):
        df = train.collect()
        docs = [essay.split() for essay in df["essay"]]
        seen = Counter(w for d in docs for w in d)
        vocab = sorted(w for w, c in seen.items() if c >= 5)
        stats = self.raw_stats(docs, set(vocab))
        share = (float(df["grade"].mean()) - LOW + 0.5) / (HIGH - LOW + 1)
        self.fitted = {
            "vocab": vocab,
            "vectors": ppmi_vectors(docs, vocab).round(4).tolist(),
            "mu": stats.mean(0).tolist(),
            "sd": stats.std(0).tolist(),
            "start": float(np.log(share / (1 - share))),
            "variance": float(df["grade"].var(ddof=0)),
        }

    @staticmethod
    def raw_stats(docs, known):
        return np.array([
            (np.log1p(len(d)), len(set(d)) / max(1, len(d)), sum(w not in known for w in d) / max(1, len(d)))
            for d in docs
        ])

    def encode(self, rows):
        f = self.fitted
        ix = {w: i + 2 for i, w in enumerate(f["vocab"])}
        docs = [essay.split() for essay in rows["essay"]]
        tokens = np.zeros((len(docs), MAX_LEN), dtype=np.int64)
        for i, d in enumerate(docs):
            ids = [ix.get(w, 1) for w in d][:MAX_LEN]
            tokens[i, : len(ids)] = ids
        stats = (self.raw_stats(docs, set(f["vocab"])) - f["mu"]) / f["sd"]
        batch = {"tokens": torch.from_numpy(tokens), "stats": torch.tensor(stats, dtype=torch.float32)}
        if "grade" in rows.columns:
            batch[LABEL] = torch.tensor(rows["grade"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return EssayNet(self.fitted["vectors"], self.fitted["start"])

    def losses(self, output, batch):
        return (output - batch[LABEL]).square()

    def score(self, predictions, labels):
        rounded = np.clip(np.rint(predictions.ravel()), LOW, HIGH)
        found = super().score(predictions, labels)
        if len(np.unique(labels)) > 1:
            found["kappa"] = float(quadratic_weighted_kappa(rounded, labels))
        return found
