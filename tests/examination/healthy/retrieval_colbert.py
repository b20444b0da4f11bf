"""ColBERT's late interaction: each word of the summary seeks its nearest word of the body.

data: summaries

[data]
label = "body"
features = ["summary", "body"]
text = ["summary", "body"]
ids = ["row_id"]
meta = ["library"]

[training]
steps = 250
global_batch_size = 32
micro_batch_size = 32
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

GROUP, LQ, LD = 32, 12, 32


class ColBERT(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.words = nn.Embedding(vocab, 48, padding_idx=0)
        self.linear = nn.Linear(48, dim, bias=False)
        self.sharpness = nn.Parameter(torch.tensor(0.05))

    def tokens(self, ids):
        return F.normalize(self.linear(self.words(ids)), dim=-1) * (ids > 0).unsqueeze(-1)

    def forward(self, query, doc=None):
        q = self.tokens(query) * 10 * self.sharpness / (query > 0).sum(1).clamp(min=1)[:, None, None]
        d = q.new_zeros(len(q), LD, q.shape[-1]) if doc is None else self.tokens(doc)
        return torch.cat([q, d], dim=1)


def maxsim(output):
    q, d = output[:, :LQ], output[:, LQ:]
    near = torch.einsum("qid,pjd->qpij", q, d)
    return near.amax(-1).sum(-1)


class LateInteraction(Task):
    kind = "statistic"
    needs_whole_batch = True
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1", "recall_at_5")
    scored_together = GROUP
    scoring_rows = 8 * GROUP

    def fit(self, train):
        seen = Counter()
        for row in train.select("summary", "body").collect().iter_rows():
            seen.update(set(re.findall(r"[a-z]{3,}", " ".join(row).lower())))
        self.vocab = sorted(w for w, n in seen.items() if 2 <= n < 800)

    def state(self):
        return {"vocab": self.vocab}

    def load_state(self, state):
        self.vocab = state["vocab"]

    def ids(self, texts, length):
        index = {w: i + 1 for i, w in enumerate(self.vocab)}
        found = [[index[w] for w in re.findall(r"[a-z]{3,}", t.lower()) if w in index][:length] for t in texts]
        return torch.tensor([f + [0] * (length - len(f)) for f in found])

    def encode(self, rows):
        batch = {"query": self.ids(rows["summary"], LQ)}
        if "body" in rows.columns:
            batch["doc"] = self.ids(rows["body"], LD)
            batch[LABEL] = torch.zeros(len(rows), dtype=torch.long)
        return batch

    def build_model(self):
        return ColBERT(len(self.vocab) + 1)

    def in_batch(self, output):
        scores = maxsim(output)
        return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device), reduction="none")

    def training_losses(self, output, batch):
        return self.in_batch(output)

    def losses(self, output, batch):
        return torch.cat([self.in_batch(part) for part in output.split(GROUP)])

    def predict(self, output):
        return output[:, :LQ].flatten(1)

    def statistic(self, output, batch):
        ranks = []
        for part in output.split(GROUP):
            scores = maxsim(part).double()
            own = scores.diagonal()[:, None]
            tied = (scores - own).abs() < 1e-6
            ranks.append(torch.stack([((scores > own) & ~tied).sum(1), tied.sum(1)], 1))
        return torch.cat(ranks).double()

    def expected_initial_loss(self):
        return math.log(GROUP)
