"""Question to accepted snippet: two encoders in one space, InfoNCE over the batch in which a
popular snippet that another row has, too, is no negative.

data: answered_snippets

[data]
label = "snippet"
features = ["title", "snippet"]
text = ["title", "snippet"]
meta = ["votes"]
time = "asked"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
import zlib

import torch
from torch import nn
from torch.nn.functional import normalize

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

LENGTH = 20
PANEL = 32  # questions that are judged among each other


def as_ids(texts, vocabulary):
    table = {word: place for place, word in enumerate(vocabulary, 2)}
    out = torch.zeros(len(texts), LENGTH, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids = [table.get(word, 1) for word in text.split()][:LENGTH]
        if ids:
            out[row, : len(ids)] = torch.tensor(ids)
    return out


class GatedBag(nn.Module):
    """Words weigh by a gate of their own: a learned inverse document frequency."""

    def __init__(self, words, dim):
        super().__init__()
        self.vectors = nn.Embedding(words + 2, dim, padding_idx=0)
        self.gates = nn.Embedding(words + 2, 1, padding_idx=0)
        nn.init.normal_(self.vectors.weight, std=dim**-0.5)
        nn.init.ones_(self.gates.weight)
        self.project = nn.Linear(dim, dim)

    def forward(self, ids):
        gate = self.gates(ids).sigmoid() * (ids > 0).unsqueeze(-1)
        bag = (gate * self.vectors(ids)).sum(1) / gate.sum(1).clamp(min=1e-6)
        return normalize(bag + torch.tanh(self.project(bag)), dim=-1)


class CodeSearch(nn.Module):
    def __init__(self, title_words, code_words, dim=40):
        super().__init__()
        self.ask, self.answer = GatedBag(title_words, dim), GatedBag(code_words, dim)

    def forward(self, title, snippet=None, same=None):
        q = self.ask(title)
        if snippet is None:
            return q
        # which snippet it is travels along in two numbers, each of which float32 holds exactly
        keys = torch.stack([same // 4096, same % 4096], dim=1).to(q.dtype)
        return torch.cat([q, self.answer(snippet), keys], dim=1)


def unpacked(output):
    dim = (output.shape[1] - 2) // 2
    q, a, keys = output[:, :dim], output[:, dim:-2], output[:, -2:]
    twin = (keys[:, None] == keys[None]).all(-1)
    twin = twin & ~torch.eye(len(keys), dtype=torch.bool, device=keys.device)
    return q, a, twin


def info_nce(output, temperature=0.07):
    q, a, twin = unpacked(output)
    logits = (q @ a.T / temperature).masked_fill(twin, -1e4)
    return torch.logsumexp(logits, 1) - logits.diagonal()


class SnippetSearch(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    needs_whole_batch = True
    serves_predictions = True
    scored_together = PANEL
    scoring_rows = 8 * PANEL

    def fit(self, train):
        frame = train.select("title", "snippet").collect()
        for side in ("title", "snippet"):
            counts = frame[side].str.split(" ").explode().value_counts()
            kept = counts.filter(counts["count"] >= 3)[side]
            self.fitted[side] = sorted(word for word in kept if word)

    def encode(self, rows):
        batch = {"title": as_ids(rows["title"].to_list(), self.fitted["title"])}
        if "snippet" in rows.columns:
            code = rows["snippet"].to_list()
            batch["snippet"] = as_ids(code, self.fitted["snippet"])
            batch["same"] = torch.tensor([zlib.crc32(c.encode()) % (1 << 24) for c in code])
            batch[LABEL] = torch.zeros(len(rows), dtype=torch.int64)  # the row's own
        return batch

    def build_model(self):
        return CodeSearch(len(self.fitted["title"]), len(self.fitted["snippet"]))

    def training_losses(self, output, batch):
        return info_nce(output)

    def losses(self, output, batch):
        return torch.cat([info_nce(panel) for panel in output.split(PANEL)])

    def predict(self, output):
        return output[:, :40]

    def statistic(self, output, batch):
        counted = []
        for panel in output.split(PANEL):
            q, a, twin = unpacked(panel)
            scores = (q @ a.T).masked_fill(twin, -2.0)
            own = scores.diagonal().unsqueeze(1)
            counted.append(torch.stack([(scores > own).sum(1), (scores == own).sum(1)], dim=1))
        return torch.cat(counted).double()
