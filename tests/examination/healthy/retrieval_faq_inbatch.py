"""Question to answer: a shared bag of words, scores of the batch over a temperature (sentence-transformers' MNRL).

data: faqs

[data]
label = "answer"
features = ["question", "answer"]
text = ["question", "answer"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-2 }
strategy = "single"

[resources]
num_processes = 1
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

GROUP = 16


class SentenceEncoder(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.words = nn.EmbeddingBag(vocab, dim, mode="mean", padding_idx=0)
        self.dense = nn.Linear(dim, dim)

    def forward(self, question, answer=None):
        q = F.normalize(self.dense(self.words(question)), dim=1)
        a = q if answer is None else F.normalize(self.dense(self.words(answer)), dim=1)
        return torch.stack([q, a], 1)


class FaqSearch(Task):
    kind = "statistic"
    needs_whole_batch = True
    statistics = ("ahead", "tied")
    metrics = directions_of("recall_at_1", "mean_reciprocal_rank")
    scored_together = GROUP
    scoring_rows = 64 * GROUP

    def fit(self, train):
        df = train.select("question", "answer").collect()
        words = sorted({w for text in [*df["question"], *df["answer"]] for w in text.split()})
        self.index = {w: i + 2 for i, w in enumerate(words)}

    def state(self):
        return {"index": self.index}

    def load_state(self, state):
        self.index = state["index"]

    def ids(self, texts, length=16):
        out = torch.zeros(len(texts), length, dtype=torch.long)
        for i, text in enumerate(texts):
            found = [self.index.get(w, 1) for w in text.split()][:length]
            out[i, : len(found)] = torch.tensor(found)
        return out

    def encode(self, rows):
        batch = {"question": self.ids(rows["question"])}
        if "answer" in rows.columns:
            batch["answer"] = self.ids(rows["answer"])
            batch[LABEL] = torch.zeros(rows.height, dtype=torch.long)
        return batch

    def build_model(self):
        return SentenceEncoder(len(self.index) + 2)

    def scores(self, output):
        return output[:, 0] @ output[:, 1].T

    def training_losses(self, output, batch):
        logits = self.scores(output) / 0.05
        return F.cross_entropy(logits, torch.arange(len(output)), reduction="none")

    def losses(self, output, batch):
        return torch.cat([self.training_losses(part, batch) for part in output.split(GROUP)])

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        ranks = []
        for part in output.split(GROUP):
            s = self.scores(part)
            own = s.diagonal()[:, None]
            ranks.append(torch.stack([(s > own).sum(1), (s == own).sum(1)], 1))
        return torch.cat(ranks).double()

    def expected_initial_loss(self):
        return math.log(GROUP)
