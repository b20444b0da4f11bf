"""Was the customer content? A GRU over turns, each an attended bag of words; answers of a survey stand for unequal numbers.

data: dialogues

[data]
label = "content"
features = ["turns", "stands_for"]
text = ["turns"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

TURNS, WORDS = 8, 12


class WordAttention(nn.Module):
    """One vector for each turn."""

    def __init__(self, vocab, dim):
        super().__init__()
        self.lookup = nn.Embedding(vocab, dim, padding_idx=0)
        self.key = nn.Linear(dim, dim)
        self.query = nn.Parameter(torch.randn(dim) / dim**0.5)

    def forward(self, words):
        x = self.lookup(words)  # batch, turns, words, dim
        score = torch.tanh(self.key(x)) @ self.query
        score = score.masked_fill(words == 0, -1e4)
        return torch.einsum("btw,btwd->btd", score.softmax(-1), x)


class DialogueNet(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.turn = WordAttention(vocab, dim)
        self.rnn = nn.GRUCell(dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, words):
        vectors = self.turn(words)
        spoken = (words != 0).any(-1)
        h = vectors.new_zeros(len(words), vectors.shape[-1])
        for t in range(TURNS):
            new = self.rnn(vectors[:, t], h)
            h = torch.where(spoken[:, t, None], new, h)  # what was never said changes nothing
        return self.out(F.dropout(h, 0.2, self.training)).squeeze(-1)


class Contentment(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def fit(self, train):
        df = train.collect()
        words = itertools.chain.from_iterable(turns.split() for turns in df["turns"].str.replace_all("|", " ", literal=True))
        self.fitted = {"words": sorted(set(words))}

    def encode(self, rows):
        number = {w: i + 2 for i, w in enumerate(self.fitted["words"])}
        grid = torch.zeros(rows.height, TURNS, WORDS, dtype=torch.long)
        for i, turns in enumerate(t.split(" | ") for t in rows["turns"]):
            for t, turn in enumerate(turns[-TURNS:]):
                ids = [number.get(w, 1) for w in turn.split()][:WORDS]
                grid[i, t, : len(ids)] = torch.tensor(ids)
        batch = {"words": grid}
        if "content" in rows.columns:
            batch[LABEL] = torch.tensor(rows["content"].to_list(), dtype=torch.float32)
            batch[WEIGHT] = torch.tensor(rows["stands_for"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return DialogueNet(len(self.fitted["words"]) + 2)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
