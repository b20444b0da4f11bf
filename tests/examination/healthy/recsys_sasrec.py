"""SASRec: self-attention over the session, scores by the items' own embeddings.

data: sessions

[data]
label = "next"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SASRec(nn.Module):
    def __init__(self, item_num, hidden=32, maxlen=10):
        super().__init__()
        self.item_emb = nn.Embedding(item_num + 1, hidden, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen, hidden)
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attn = nn.MultiheadAttention(hidden, 2, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, hidden))
        self.register_buffer("causal", torch.triu(torch.ones(maxlen, maxlen, dtype=torch.bool), diagonal=1))
        for e in (self.item_emb, self.pos_emb):
            nn.init.normal_(e.weight, std=0.02)

    def forward(self, log_seqs, last):
        x = self.item_emb(log_seqs) * self.item_emb.embedding_dim**0.5
        x = x + self.pos_emb.weight
        h = self.ln1(x)
        a, _ = self.attn(h, h, h, attn_mask=self.causal, need_weights=False)
        x = x + a
        x = x + self.ffn(self.ln2(x))
        final = x[torch.arange(len(x)), last]
        return final @ self.item_emb.weight[1:].T


class SASRecTask(Task):
    kind = "multiclass"
    metrics = directions_of("top_5_accuracy", "log_loss", "accuracy")

    def fit(self, train):
        self.items = sorted(train.select("next").unique().collect()["next"])

    def state(self):
        return {"items": self.items}

    def load_state(self, state):
        self.items = state["items"]

    def encode(self, rows):
        ids = {item: i + 1 for i, item in enumerate(self.items)}
        seq, last = np.zeros((len(rows), 10), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        for r, seen in enumerate(rows["seen"]):
            known = [ids.get(i, 0) for i in seen][-10:]
            seq[r, : len(known)] = known
            last[r] = max(len(known) - 1, 0)
        batch = {"log_seqs": torch.from_numpy(seq), "last": torch.from_numpy(last)}
        if "next" in rows.columns:
            batch[LABEL] = torch.tensor([ids.get(i, 1) - 1 for i in rows["next"]])
        return batch

    def build_model(self):
        return SASRec(len(self.items))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(-1)

    def expected_initial_loss(self):
        return math.log(len(self.items))
