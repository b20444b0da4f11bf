"""Sentence pairs by CosineSimilarityLoss (sentence-transformers): mean pooling, cosine against score / 5.

data: sentence_pairs

[data]
label = "score"
text = ["sentence1", "sentence2"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_SEQ = 14


class BiEncoder(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        self.dense = nn.Linear(dim, dim)

    def pool(self, ids):
        mask = (ids > 0).float().unsqueeze(-1)
        token = torch.tanh(self.dense(self.embedding(ids)))
        return (token * mask).sum(1) / mask.sum(1).clamp(min=1e-9)

    def forward(self, a, b):
        return F.cosine_similarity(self.pool(a), self.pool(b), dim=1)


class STS(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        df = train.collect()
        words = sorted({w for t in [*df["sentence1"], *df["sentence2"]] for w in t.split()})
        self.fitted = {"stoi": {w: i + 2 for i, w in enumerate(words)}}

    def ids(self, texts):
        stoi = self.fitted["stoi"]
        rows = [[stoi.get(w, 1) for w in t.split()][:MAX_SEQ] for t in texts]
        return torch.tensor([r + [0] * (MAX_SEQ - len(r)) for r in rows])

    def encode(self, rows):
        batch = {"a": self.ids(rows["sentence1"]), "b": self.ids(rows["sentence2"])}
        if "score" in rows.columns:
            batch[LABEL] = torch.tensor(rows["score"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return BiEncoder(len(self.fitted["stoi"]) + 2)

    def losses(self, output, batch):
        return (output - batch[LABEL] / 5).square()

    def predict(self, output):
        return 5 * output
