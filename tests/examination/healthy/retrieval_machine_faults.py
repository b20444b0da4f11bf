"""The fault behind a complaint: trigrams hashed into two EmbeddingBags, negatives of the batch.

Cross-entropy among 32 candidates 0.95; 3.47 for a guess.

data: machine_complaints

[data]
label = "fault"
features = ["complaint", "fault"]
text = ["complaint", "fault"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 96
micro_batch_size = 96
optimizer = { learning_rate = 1e-2, weight_decay = 0.01 }
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

BUCKETS, LENGTH = 4096, 90
CANDIDATES = 32
SCALE = 10.0


def trigrams(text):
    for word in text.lower().split():
        marked = f"<{word}>"
        yield from (marked[k : k + 3] for k in range(len(marked) - 2))


class Tower(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS + 1, dim, mode="mean", padding_idx=0)
        self.dense = nn.Sequential(nn.Linear(dim, 48), nn.ReLU(), nn.Linear(48, dim))

    def forward(self, ids):
        return F.normalize(self.dense(self.bag(ids)), dim=1)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.complaints, self.faults = Tower(), Tower()

    def forward(self, complaint, fault=None):
        query = self.complaints(complaint)
        answer = query if fault is None else self.faults(fault)
        return torch.stack([query, answer], dim=1)


class MachineFaults(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    needs_whole_batch = True
    scored_together = CANDIDATES

    def ids(self, texts):
        out = torch.zeros(len(texts), LENGTH, dtype=torch.long)
        for i, text in enumerate(texts):
            found = [zlib.crc32(t.encode()) % BUCKETS + 1 for t in trigrams(text)][:LENGTH]
            out[i, : len(found)] = torch.tensor(found)
        return out

    def encode(self, rows):
        batch = {"complaint": self.ids(rows["complaint"])}
        if "fault" in rows.columns:
            batch["fault"] = self.ids(rows["fault"])
            batch[LABEL] = torch.zeros(rows.height, dtype=torch.long)
        return batch

    def build_model(self):
        return TwoTowers()

    def scores(self, output, fault):
        """Cosines of all pairs; other rows with the same fault are no negatives."""
        scores = output[:, 0] @ output[:, 1].T * SCALE
        same = (fault[:, None] == fault[None]).all(dim=-1)
        same.fill_diagonal_(False)
        return scores.masked_fill(same, -1e4)

    def training_losses(self, output, batch):
        scores = self.scores(output, batch["fault"])
        own = torch.arange(len(scores), device=scores.device)
        return F.cross_entropy(scores, own, reduction="none")

    def losses(self, output, batch):
        parts = zip(output.split(CANDIDATES), batch["fault"].split(CANDIDATES))
        found = []
        for o, fault in parts:
            scores = self.scores(o, fault)
            own = torch.arange(len(scores), device=scores.device)
            found.append(F.cross_entropy(scores, own, reduction="none"))
        return torch.cat(found)

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        found = []
        for o, fault in zip(output.split(CANDIDATES), batch["fault"].split(CANDIDATES)):
            scores = self.scores(o, fault)
            own = scores.diagonal()[:, None]
            found.append(torch.stack([(scores > own).sum(1), (scores == own).sum(1)], dim=1))
        return torch.cat(found).double()
