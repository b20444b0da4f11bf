"""Titles of goods to a shelf three levels deep: words and a letter CNN side by side, the levels above are summed in the loss.

data: shop_titles

[data]
label = "shelf"
features = ["title"]
text = ["title"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
"""
from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 "
N_CHARS, N_WORDS = 48, 7


class TitleNet(nn.Module):
    def __init__(self, n_words, n_shelves):
        super().__init__()
        self.words = nn.EmbeddingBag(n_words, 32, mode="sum", padding_idx=0)
        self.chars = nn.Embedding(len(ALPHABET) + 1, 16, padding_idx=0)
        self.conv = nn.Conv1d(16, 48, kernel_size=4)
        self.fc = nn.Sequential(nn.Dropout(0.3), nn.Linear(80, 64), nn.GELU(), nn.Linear(64, n_shelves))

    def forward(self, words, chars):
        c = self.conv(self.chars(chars).permute(0, 2, 1))
        c = F.gelu(c).amax(dim=2)
        w = self.words(words)
        return self.fc(torch.cat([w, c], dim=1))


class ShelfOfTitle(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "top_3_accuracy")

    def fit(self, train):
        df = train.collect()
        c = Counter(w for t in df["title"] for w in t.split())
        self.vocab = sorted([w for w in c if c[w] > 2])
        self.shelves = sorted(set(df["shelf"]))

    def state(self):
        return {"vocab": self.vocab, "shelves": self.shelves}

    def load_state(self, state):
        self.vocab, self.shelves = list(state["vocab"]), list(state["shelves"])

    @property
    def prediction_names(self):
        return self.shelves

    def encode(self, rows):
        w2i = {w: i for i, w in enumerate(self.vocab, start=2)}
        c2i = {c: i for i, c in enumerate(ALPHABET, start=1)}
        words, chars = [], []
        for title in rows["title"]:
            title = title.lower()
            w = [w2i.get(t, 1) for t in title.split()][:N_WORDS]
            c = [c2i[x] for x in title if x in c2i][:N_CHARS]
            words.append(w + [0] * (N_WORDS - len(w)))
            chars.append(c + [0] * (N_CHARS - len(c)))
        out = {"words": torch.tensor(words), "chars": torch.tensor(chars)}
        if "shelf" in rows.columns:
            place = {s: i for i, s in enumerate(self.shelves)}
            out[LABEL] = torch.tensor([place[s] for s in rows["shelf"]])
        return out

    def build_model(self):
        return TitleNet(len(self.vocab) + 2, len(self.shelves))

    def levels(self, depth):
        """Which ancestor each shelf has, and a matrix [shelves, ancestors]."""
        names = [" > ".join(s.split(" > ")[:depth]) for s in self.shelves]
        above = sorted(set(names))
        of = torch.tensor([above.index(n) for n in names])
        return of, F.one_hot(of, len(above)).bool()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        logp = F.log_softmax(output, dim=1)
        loss = F.nll_loss(logp, batch[LABEL], reduction="none")
        for depth, weight in ((1, 0.3), (2, 0.3)):
            of, members = self.levels(depth)
            of, members = of.to(output.device), members.to(output.device)
            up = logp.unsqueeze(2).masked_fill(~members, -1e9).logsumexp(1)
            loss = loss + weight * F.nll_loss(up, of[batch[LABEL]], reduction="none")
        return loss
