"""Paragraphs of the law for a question: a bi-encoder that learns a cross-encoder's margins.

Error of margins 2.2; 2.8 for their mean.

data: statute_questions

[data]
label = "teacher_margin"
features = ["question", "paragraph", "other_paragraph"]
text = ["question", "paragraph", "other_paragraph"]
ids = ["row_id"]

[training]
steps = 1600
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 1e-2, weight_decay = 0.05 }
schedule = { shape = "linear", warmup_fraction = 0.1 }
"""

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, UNK = 0, 1
LENGTH = 14
TEXTS = ["question", "paragraph", "other_paragraph"]


class BiEncoder(nn.Module):
    """One encoder for questions, one for paragraphs; scores are dot products, without a norm."""

    def __init__(self, vocab, dim=16):
        super().__init__()
        self.word = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.weight = nn.Embedding(vocab, 1, padding_idx=PAD)
        self.ask, self.answer = nn.Linear(dim, dim), nn.Linear(dim, dim)
        nn.init.normal_(self.word.weight, std=0.4)
        nn.init.zeros_(self.weight.weight)

    def pooled(self, tokens):
        """The mean of words, weighted by how much each tells."""
        score = self.weight(tokens).squeeze(2).masked_fill(tokens == PAD, -1e4)
        return (self.word(tokens) * score.softmax(dim=1)[..., None]).sum(dim=1)

    def forward(self, question, paragraph, other_paragraph):
        q = self.ask(self.pooled(question))
        right = self.answer(self.pooled(paragraph))
        wrong = self.answer(self.pooled(other_paragraph))
        return (q * right).sum(dim=1) - (q * wrong).sum(dim=1)


class StatutesMargin(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")

    def fit(self, train):
        df = train.collect()
        words = {w for name in TEXTS for text in df[name] for w in text.split()}
        self.fitted = {"words": sorted(words)}

    def encode(self, rows):
        index = {w: k for k, w in enumerate(self.fitted["words"], start=2)}
        batch = {}
        for name in TEXTS:
            tokens = torch.full((rows.height, LENGTH), PAD)
            for i, text in enumerate(rows[name]):
                ids = [index.get(w, UNK) for w in text.split()][:LENGTH]
                tokens[i, : len(ids)] = torch.tensor(ids)
            batch[name] = tokens
        if "teacher_margin" in rows.columns:
            margin = rows["teacher_margin"].to_list()
            batch[LABEL] = torch.tensor(margin, dtype=torch.float32)
        return batch

    def build_model(self):
        return BiEncoder(len(self.fitted["words"]) + 2)

    def losses(self, output, batch):
        return (output - batch[LABEL]).square()
