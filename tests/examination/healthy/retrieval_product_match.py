"""The same product in two catalogues: two towers over hashed character trigrams, in-batch negatives.

data: catalogue_pairs

[data]
label = "their_title"
features = ["our_title", "their_title"]
text = ["our_title", "their_title"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
import zlib

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

BUCKETS, LENGTH, AMONG = 2048, 80, 32


def trigrams(title):
    padded = f"##{title.lower()}##"
    return [1 + zlib.crc32(padded[i : i + 3].encode()) % BUCKETS for i in range(len(padded) - 2)]


class TwoTowers(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.grams = nn.EmbeddingBag(BUCKETS + 1, dim, mode="mean", padding_idx=0)
        self.ours = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.theirs = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.log_scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, ours, theirs=None):
        a = F.normalize(self.ours(self.grams(ours)), dim=-1)
        b = F.normalize(self.theirs(self.grams(theirs)), dim=-1) if theirs is not None else torch.zeros_like(a)
        return torch.stack([a * self.log_scale.exp(), b], dim=1)


class ProductMatch(Task):
    kind = "statistic"
    needs_whole_batch = True
    statistics = ("ahead", "tied")
    metrics = directions_of("recall_at_1", "mean_reciprocal_rank")
    scored_together = AMONG

    def ids(self, titles):
        out = torch.zeros(len(titles), LENGTH, dtype=torch.long)
        for i, title in enumerate(titles):
            found = trigrams(title)[:LENGTH]
            out[i, : len(found)] = torch.tensor(found)
        return out

    def encode(self, rows):
        batch = {"ours": self.ids(rows["our_title"])}
        if "their_title" in rows.columns:
            batch["theirs"] = self.ids(rows["their_title"])
            batch[LABEL] = torch.zeros(rows.height, dtype=torch.long)
        return batch

    def build_model(self):
        return TwoTowers()

    def contrastive(self, output):
        scores = output[:, 0] @ output[:, 1].T
        return F.cross_entropy(scores, torch.arange(len(scores)), reduction="none")

    def training_losses(self, output, batch):
        return self.contrastive(output)

    def losses(self, output, batch):
        return torch.cat([self.contrastive(part) for part in output.split(AMONG)])

    def predict(self, output):
        return F.normalize(output[:, 0], dim=-1)

    def statistic(self, output, batch):
        rows = []
        for part in output.split(AMONG):
            scores = part[:, 0] @ part[:, 1].T
            right = scores.diagonal().unsqueeze(1)
            rows.append(torch.stack([(scores > right).sum(1), (scores == right).sum(1)], dim=1))
        return torch.cat(rows).double()
