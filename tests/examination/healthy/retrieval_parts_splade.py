"""Spare parts by what mechanics type: SPLADE in small, sparse weights over the vocabulary, in-batch softmax and a FLOPS penalty.

data: parts_searches

[data]
label = "entry"
features = ["query", "entry"]
text = ["query", "entry"]
meta = ["branch"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, weight_decay = 0.0 }
strategy = "single"

[resources]
num_processes = 1
"""
import math
import re
from collections import Counter

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

GROUP = 50
PAD, UNK = 0, 1
LAMBDA_Q, LAMBDA_D = 1e-3, 1e-3


def tokenize(text):
    return re.findall(r"[a-z]+\d*|\d+[a-z]*", text.lower())


class Splade(nn.Module):
    """Each token votes for the words of the vocabulary; the strongest vote for a word counts."""

    def __init__(self, n_vocab, dim=64):
        super().__init__()
        self.embed = nn.Embedding(n_vocab, dim, padding_idx=PAD)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.full((n_vocab,), 0.1))
        nn.init.normal_(self.embed.weight, std=0.125)
        with torch.no_grad():
            self.embed.weight[PAD] = 0

    def represent(self, ids):
        x = self.embed(ids)
        logits = (x + self.transform(x)) @ self.embed.weight.T + self.bias
        votes = torch.log1p(torch.relu(logits))
        return votes.masked_fill((ids == PAD).unsqueeze(-1), 0.0).amax(dim=1)

    def forward(self, query, doc=None):
        q = self.represent(query)
        d = self.represent(doc) if doc is not None else torch.zeros_like(q)
        return torch.stack([q, d], dim=1)


class PartSearch(Task):
    kind = "statistic"
    needs_whole_batch = True
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1", "recall_at_5")
    scored_together = GROUP
    scoring_rows = 20 * GROUP

    def fit(self, train):
        df = train.select("query", "entry").collect()
        counts = Counter()
        for text in [*df["query"], *df["entry"]]:
            counts.update(set(tokenize(text)))
        self.fitted = {"vocab": ["[PAD]", "[UNK]"] + sorted(w for w, c in counts.items() if c >= 20)}

    def ids(self, texts, max_length):
        lookup = {w: i for i, w in enumerate(self.fitted["vocab"])}
        out = torch.full((len(texts), max_length), PAD)
        for row, text in zip(out, texts):
            found = [lookup.get(w, UNK) for w in tokenize(text)][:max_length]
            row[: len(found)] = torch.tensor(found, dtype=torch.long)
        return out

    def encode(self, rows):
        batch = {"query": self.ids(rows["query"], 8)}
        if "entry" in rows.columns:
            batch["doc"] = self.ids(rows["entry"], 24)
            batch[LABEL] = torch.zeros(rows.height, dtype=torch.long)
        return batch

    def build_model(self):
        return Splade(len(self.fitted["vocab"]))

    def contrast(self, output):
        q, d = output.unbind(1)
        scores = q @ d.T
        return nn.functional.cross_entropy(scores, torch.arange(len(q), device=q.device), reduction="none")

    def flops(self, weights):
        return weights.abs().mean(dim=0).square().sum()

    def training_losses(self, output, batch):
        q, d = output.unbind(1)
        penalty = LAMBDA_Q * self.flops(q) + LAMBDA_D * self.flops(d)
        return self.contrast(output) + penalty

    def losses(self, output, batch):
        return torch.cat([self.contrast(part) for part in output.split(GROUP)])

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        found = []
        for part in output.split(GROUP):
            scores = part[:, 0] @ part[:, 1].T
            own = scores.diagonal().unsqueeze(1)
            found.append(torch.stack([(scores > own).sum(1), (scores == own).sum(1)], dim=1))
        return torch.cat(found).double()
