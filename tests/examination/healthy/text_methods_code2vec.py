"""What does a method do? code2vec: pairs of leaves with the path between them, names hashed into
buckets, attention by one global vector, a softmax over verbs.

data: code_methods

[data]
label = "verb"
features = ["contexts"]
group = "repository"
meta = ["tokens"]
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 350
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 5e-3 }
"""
from collections import Counter
from hashlib import md5

import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_CONTEXTS = 40
BUCKETS = 509  # of subtokens
PAD = 0


def bucket(word: str) -> int:
    """A place for any name, also those that no training row has; the builtin hash is salted."""
    return 1 + int(md5(word.encode()).hexdigest()[:8], 16) % BUCKETS


class Code2Vec(nn.Module):
    def __init__(self, n_paths: int, n_verbs: int, dim: int = 24, code_dim: int = 48):
        super().__init__()
        self.tokens = nn.Embedding(BUCKETS + 1, dim, padding_idx=PAD)
        self.paths = nn.Embedding(n_paths, dim, padding_idx=PAD)
        self.combine = nn.Linear(3 * dim, code_dim, bias=False)
        self.attention = nn.Parameter(torch.randn(code_dim) / code_dim**0.5)
        self.dropout = nn.Dropout(0.25)
        self.verbs = nn.Linear(code_dim, n_verbs, bias=False)

    def forward(self, left, path, right):
        parts = [self.tokens(left), self.paths(path), self.tokens(right)]
        c = torch.tanh(self.combine(self.dropout(torch.cat(parts, dim=-1))))
        scores = (c @ self.attention).masked_fill(path == PAD, float("-inf"))
        code_vector = torch.einsum("bn,bnd->bd", scores.softmax(-1), c)
        return self.verbs(code_vector)


class MethodNames(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "top_3_accuracy")

    def fit(self, train):
        frame = train.select("contexts", "verb").collect()
        paths = Counter(c.split(",")[1] for row in frame["contexts"] for c in row)
        self.fitted = {
            "paths": {p: i for i, (p, k) in enumerate(paths.most_common(200), start=2) if k > 1},
            "verbs": sorted(frame["verb"].unique().to_list()),
        }

    def encode(self, rows):
        shape = (len(rows), MAX_CONTEXTS)
        left, path, right = (torch.full(shape, PAD) for _ in range(3))
        known = self.fitted["paths"]
        for i, contexts in enumerate(rows["contexts"].to_list()):
            for j, context in enumerate(contexts[:MAX_CONTEXTS]):
                a, way, b = context.split(",")
                left[i, j], path[i, j], right[i, j] = bucket(a), known.get(way, 1), bucket(b)
        batch = {"left": left, "path": path, "right": right}
        if "verb" in rows.columns:
            verb_id = {v: i for i, v in enumerate(self.fitted["verbs"])}
            batch[LABEL] = torch.tensor([verb_id[v] for v in rows["verb"].to_list()])
        return batch

    def build_model(self):
        return Code2Vec(2 + len(self.fitted["paths"]), len(self.fitted["verbs"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
