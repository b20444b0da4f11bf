"""GRU4Rec: the next item of a session, padded on the left.

data: sessions

[data]
label = "next"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAXLEN = 10


class GRU4Rec(nn.Module):
    def __init__(self, n_items, dim=32):
        super().__init__()
        self.item_emb = nn.Embedding(n_items + 1, dim, padding_idx=0)
        self.gru = nn.GRU(dim, 64, batch_first=True)
        self.h2o = nn.Linear(64, n_items)

    def forward(self, seq):
        output, hidden = self.gru(self.item_emb(seq))
        return self.h2o(output[:, -1, :])


class NextItem(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "top_5_accuracy", "log_loss")

    def fit(self, train):
        df = train.select("seen", "next").collect()
        self.items = sorted(set(df["next"]) | set(df["seen"].explode()))

    def state(self):
        return {"items": self.items}

    def load_state(self, state):
        self.items = state["items"]

    def encode(self, rows):
        code = {item: i for i, item in enumerate(self.items)}
        seqs = [[code[i] + 1 for i in seen if i in code][-MAXLEN:] for seen in rows["seen"].to_list()]
        batch = {"seq": torch.tensor([[0] * (MAXLEN - len(s)) + s for s in seqs])}
        if "next" in rows.columns:
            batch[LABEL] = torch.tensor([code.get(i, 0) for i in rows["next"]])
        return batch

    def build_model(self):
        return GRU4Rec(len(self.items))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(dim=1)

    def expected_initial_loss(self):
        return math.log(len(self.items))
