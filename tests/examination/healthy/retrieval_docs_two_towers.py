"""A summary and its body: two bags of words in one space, in-batch softmax, temperature 0.1.

data: summaries

[data]
label = "body"
features = ["summary", "body"]
text = ["summary", "body"]
ids = ["row_id"]
meta = ["library"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
import math
import re
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

GROUP = 32


class TwoTower(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.words = nn.Embedding(vocab, dim, padding_idx=0)
        self.query, self.doc = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def tower(self, ids, head):
        mask = (ids > 0).float().unsqueeze(-1)
        pooled = (self.words(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return F.normalize(head(pooled), dim=-1)

    def forward(self, query, doc=None):
        q = self.tower(query, self.query)
        d = self.tower(doc, self.doc) if doc is not None else torch.zeros_like(q)
        return torch.stack([q, d], dim=1)


class DocSearch(Task):
    kind = "statistic"
    needs_whole_batch = True
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1", "recall_at_5")
    scored_together = GROUP
    scoring_rows = 32 * GROUP
    temperature = 0.1

    def fit(self, train):
        words = Counter()
        for row in train.select("summary", "body").collect().iter_rows():
            words.update(set(re.findall(r"[a-z]{3,}", " ".join(row).lower())))
        self.vocab = sorted(w for w, n in words.items() if 3 <= n < 1000)

    def state(self):
        return {"vocab": self.vocab}

    def load_state(self, state):
        self.vocab = state["vocab"]

    def ids(self, texts, length):
        index = {w: i + 1 for i, w in enumerate(self.vocab)}
        out = torch.zeros(len(texts), length, dtype=torch.long)
        for i, t in enumerate(texts):
            found = [index[w] for w in re.findall(r"[a-z]{3,}", t.lower()) if w in index][:length]
            out[i, : len(found)] = torch.tensor(found, dtype=torch.long)
        return out

    def encode(self, rows):
        batch = {"query": self.ids(rows["summary"], 16)}
        if "body" in rows.columns:
            batch["doc"] = self.ids(rows["body"], 40)
            batch[LABEL] = torch.zeros(len(rows), dtype=torch.long)
        return batch

    def build_model(self):
        return TwoTower(len(self.vocab) + 1)

    def scores(self, output):
        q, d = output.unbind(1)
        return q @ d.T

    def in_batch(self, output):
        logits = self.scores(output) / self.temperature
        right = torch.arange(len(output))
        return 0.5 * (F.cross_entropy(logits, right, reduction="none") + F.cross_entropy(logits.T, right, reduction="none"))

    def training_losses(self, output, batch):
        return self.in_batch(output)

    def losses(self, output, batch):
        return torch.cat([self.in_batch(part) for part in output.split(GROUP)])

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        parts = []
        for part in output.split(GROUP):
            s = self.scores(part)
            own = s.diagonal()[:, None]
            ahead = (s > own).sum(1)
            parts.append(torch.stack([ahead, (s == own).sum(1)], 1))
        return torch.cat(parts).double()

    def expected_initial_loss(self):
        return math.log(GROUP)
