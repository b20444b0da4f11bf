"""K-NRM: which of five paragraphs answers? Cosines of all pairs of words, counted by soft kernels, and a softmax over the five.

data: manual_answers

[data]
label = "answer"
features = ["question", "found"]
text = ["question", "found"]
ids = ["row_id"]

[training]
steps = 350
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-2 }
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

Q, D = 8, 18


class KNRM(nn.Module):
    def __init__(self, vocab, dim=24, kernels=11):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        mu = torch.linspace(-0.8, 1.0, kernels)
        self.register_buffer("mu", mu)
        self.register_buffer("sigma", torch.where(mu > 0.99, 0.01, 0.15))
        self.importance = nn.Embedding(vocab, 1)
        self.rank_offset = nn.Parameter(torch.zeros(5))  # the first search was not blind
        self.dense = nn.Linear(kernels, 1, bias=False)
        nn.init.zeros_(self.importance.weight)
        nn.init.normal_(self.dense.weight, std=0.01)

    def forward(self, question, found):
        q = F.normalize(self.embedding(question), dim=-1)
        d = F.normalize(self.embedding(found), dim=-1)
        cos = torch.einsum("bqe,bkde->bkqd", q, d).unsqueeze(-1)
        soft = torch.exp(-((cos - self.mu) ** 2) / (2 * self.sigma**2))
        soft = soft * (found != 0)[:, :, None, :, None]
        tf = soft.sum(3).clamp(min=1e-6).log() * 0.1
        weight = torch.sigmoid(self.importance(question)) * (question != 0).unsqueeze(-1)
        features = (tf * weight[:, None]).sum(2)
        return self.dense(features).squeeze(-1) + self.rank_offset


class ManualAnswers(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "top_2_accuracy")

    def fit(self, train):
        df = train.collect()
        texts = df["question"].to_list() + df["found"].to_list()
        self.vocab = sorted({w for t in texts for w in t.split()})

    def state(self):
        return {"vocab": self.vocab}

    def load_state(self, state):
        self.vocab = state["vocab"]

    def encode(self, rows):
        idx = {w: i + 2 for i, w in enumerate(self.vocab)}

        def ids(text, n):
            out = [idx.get(w, 1) for w in text.split()][:n]
            return out + [0] * (n - len(out))

        batch = {
            "question": torch.tensor([ids(q, Q) for q in rows["question"]]),
            "found": torch.tensor([[ids(p, D) for p in five.split("\n")] for five in rows["found"]]),
        }
        if "answer" in rows.columns:
            batch[LABEL] = torch.tensor(rows["answer"].to_list())
        return batch

    def build_model(self):
        return KNRM(len(self.vocab) + 2)

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def expected_initial_loss(self):
        return math.log(5)
