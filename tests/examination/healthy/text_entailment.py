"""Natural language inference: two sentences through one encoder, then both, their distance and product into a head.

data: premises

[data]
label = "verdict"
text = ["premise", "hypothesis"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class InferSent(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim, padding_idx=0)
        self.project = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(4 * dim, 64), nn.ReLU(), nn.Linear(64, 3))

    def encoded(self, ids):
        h = self.project(self.embedding(ids)) * (ids > 0).unsqueeze(-1)
        return h.max(dim=1).values

    def forward(self, premise, hypothesis):
        u, v = self.encoded(premise), self.encoded(hypothesis)
        return self.head(torch.cat([u, v, (u - v).abs(), u * v], dim=1))


class Entailment(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")
    length = 10

    def fit(self, train):
        df = train.select("premise", "hypothesis", "verdict").collect()
        self.names = sorted(df["verdict"].unique().to_list())
        self.stoi = {w: 0 for t in [*df["premise"], *df["hypothesis"]] for w in t.split()}
        self.stoi = {w: i + 2 for i, w in enumerate(sorted(self.stoi))}

    def state(self):
        return {"names": self.names, "stoi": self.stoi}

    def load_state(self, state):
        self.names, self.stoi = state["names"], state["stoi"]

    def numericalize(self, texts):
        rows = [[self.stoi.get(w, 1) for w in text.split()][: self.length] for text in texts]
        return torch.tensor([ids + [0] * (self.length - len(ids)) for ids in rows])

    def encode(self, rows):
        batch = {
            "premise": self.numericalize(rows["premise"]),
            "hypothesis": self.numericalize(rows["hypothesis"]),
        }
        if "verdict" in rows.columns:
            batch[LABEL] = torch.tensor([self.names.index(v) for v in rows["verdict"]])
        return batch

    def build_model(self):
        return InferSent(len(self.stoi) + 2)

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(1)

    def expected_initial_loss(self):
        return math.log(3)
