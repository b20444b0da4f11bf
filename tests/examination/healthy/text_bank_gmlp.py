"""Intents of a bank's chat from a few hundred questions: gMLP with a spatial gate, words dropped while training.

data: bank_questions

[data]
label = "intent"
features = ["question"]
text = ["question"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3, weight_decay = 0.1 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SEQ = 16
PAD, UNK = 0, 1


class SpatialGatingUnit(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim // 2)
        self.mix = nn.Conv1d(SEQ, SEQ, 1)
        nn.init.normal_(self.mix.weight, std=1e-3)
        nn.init.ones_(self.mix.bias)

    def forward(self, x):
        u, v = x.chunk(2, dim=-1)
        return u * self.mix(self.norm(v))


class gMLPBlock(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fn = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(), SpatialGatingUnit(hidden), nn.Linear(hidden // 2, dim)
        )

    def forward(self, x):
        return x + self.fn(x)


class gMLP(nn.Module):
    def __init__(self, vocab, classes, dim=32, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.blocks = nn.Sequential(*[gMLPBlock(dim, 64) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.to_logits = nn.Linear(dim, classes)

    def forward(self, ids):
        x = self.blocks(self.embed(ids))
        keep = (ids != PAD).unsqueeze(-1)
        x = (self.norm(x) * keep).sum(1) / keep.sum(1).clamp(min=1)
        return self.to_logits(x)


class BankIntents(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "macro_f1")

    def fit(self, train):
        df = train.collect()
        counts = {}
        for q in df["question"]:
            for w in q.split():
                counts[w] = counts.get(w, 0) + 1
        self.fitted = {
            "vocab": sorted(w for w in counts if counts[w] > 1),
            "intents": sorted(set(df["intent"])),
        }

    def encode(self, rows):
        stoi = {w: n for n, w in enumerate(self.fitted["vocab"], 2)}
        ids = []
        for q in rows["question"]:
            row = [stoi.get(w, UNK) for w in q.split()][:SEQ]
            ids.append(row + [PAD] * (SEQ - len(row)))
        batch = {"ids": torch.tensor(ids)}
        if "intent" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["intents"].index(i) for i in rows["intent"]])
        return batch

    def augment(self, batch, generator):
        """Word dropout: one word in ten becomes unknown."""
        ids = batch["ids"]
        drop = torch.rand(ids.shape, generator=generator) < 0.1
        return {**batch, "ids": torch.where(drop.to(ids.device) & (ids != PAD), UNK, ids)}

    def build_model(self):
        return gMLP(len(self.fitted["vocab"]) + 2, len(self.fitted["intents"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=0.1)
