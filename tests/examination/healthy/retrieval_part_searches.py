"""The spare part that was searched for: one encoder for both sides, negatives from the batch.

As sentence-transformers' tutorials for asymmetric search; rows of one part are no negatives.

data: part_searches

[data]
label = "bought"
features = ["typed", "bought"]
text = ["typed", "bought"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 96
micro_batch_size = 96
optimizer = { learning_rate = 5e-3, weight_decay = 0.02 }
strategy = "single"

[resources]
num_processes = 1
"""

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CANDIDATES = 32
LENGTH = 10
SCALE = 12.0


class PartEncoder(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.words = nn.Embedding(vocab, dim, padding_idx=0)
        self.dense = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))

    def embed(self, ids):
        mask = (ids != 0).unsqueeze(-1).float()
        mean = (self.words(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return F.normalize(self.dense(mean), dim=1)

    def forward(self, typed, bought=None):
        query = self.embed(typed)
        part = query if bought is None else self.embed(bought)
        return torch.stack([query, part], dim=1)


class PartSearch(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    needs_whole_batch = True
    scored_together = CANDIDATES

    def fit(self, train):
        df = train.collect()
        texts = [*df["typed"], *df["bought"]]
        self.fitted = {"words": sorted({w for t in texts for w in t.lower().split()})}

    def ids(self, texts):
        index = {w: i for i, w in enumerate(self.fitted["words"], start=2)}
        out = torch.zeros(len(texts), LENGTH, dtype=torch.long)
        for i, text in enumerate(texts):
            found = [index.get(w, 1) for w in text.lower().split()][:LENGTH]
            out[i, : len(found)] = torch.tensor(found)
        return out

    def encode(self, rows):
        batch = {"typed": self.ids(rows["typed"])}
        if "bought" in rows.columns:
            batch["bought"] = self.ids(rows["bought"])
            batch[LABEL] = torch.zeros(rows.height, dtype=torch.long)
        return batch

    def build_model(self):
        return PartEncoder(len(self.fitted["words"]) + 2)

    def similarities(self, output, bought):
        scores = output[:, 0] @ output[:, 1].T * SCALE
        same = (bought[:, None] == bought[None]).all(-1)
        same.fill_diagonal_(False)
        return scores.masked_fill(same, -1e4)

    def in_batch(self, output, bought):
        scores = self.similarities(output, bought)
        own = torch.arange(len(scores), device=scores.device)
        return F.cross_entropy(scores, own, reduction="none")

    def training_losses(self, output, batch):
        return self.in_batch(output, batch["bought"])

    def losses(self, output, batch):
        parts = zip(output.split(CANDIDATES), batch["bought"].split(CANDIDATES))
        return torch.cat([self.in_batch(o, b) for o, b in parts])

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        found = []
        for o, b in zip(output.split(CANDIDATES), batch["bought"].split(CANDIDATES)):
            scores = self.similarities(o, b)
            own = scores.diagonal()[:, None]
            found.append(torch.stack([(scores > own).sum(1), (scores == own).sum(1)], dim=1))
        return torch.cat(found).double()
