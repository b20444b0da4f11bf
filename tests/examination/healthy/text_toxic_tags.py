"""Four tags per comment, rare ones weighed by pos_weight, as in the toxic comment kernels.

data: comments

[data]
label = "tags"
features = ["comment"]
text = ["comment"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

MAXLEN = 32


class ToxicCNN(nn.Module):
    def __init__(self, vocab, n_tags):
        super().__init__()
        self.embed = nn.Embedding(vocab, 24, padding_idx=0)
        self.conv = nn.Conv1d(24, 32, 3, padding=1)
        self.out = nn.Linear(32, n_tags)

    def forward(self, tokens):
        h = torch.relu(self.conv(self.embed(tokens).transpose(1, 2)))
        h = h.masked_fill((tokens == 0).unsqueeze(1), 0.0)
        return self.out(h.amax(2))


class ToxicComments(Task):
    kind = "statistic"
    metrics = {"macro_recall": "maximize", "log_loss": "minimize"}

    def fit(self, train):
        df = train.collect()
        self.vocab = sorted({w for c in df["comment"] for w in c.split()})
        tags = np.array(df["tags"].to_list())
        self.pos_weight = ((1 - tags).sum(0) / tags.sum(0)).tolist()

    def state(self):
        return {"vocab": self.vocab, "pos_weight": self.pos_weight}

    def load_state(self, state):
        self.vocab, self.pos_weight = state["vocab"], state["pos_weight"]

    def encode(self, rows):
        index = {w: k for k, w in enumerate(self.vocab, start=2)}
        out = torch.zeros(rows.height, MAXLEN, dtype=torch.long)
        for i, comment in enumerate(rows["comment"].to_list()):
            known = [index.get(w, 1) for w in comment.split()[:MAXLEN]]
            out[i, : len(known)] = torch.tensor(known)
        batch = {"tokens": out}
        if "tags" in rows.columns:
            batch[LABEL] = torch.tensor(rows["tags"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return ToxicCNN(len(self.vocab) + 2, 4)

    def bce(self, output, batch, pos_weight=None):
        return nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], pos_weight=pos_weight, reduction="none"
        ).mean(1)

    def losses(self, output, batch):
        return self.bce(output, batch)

    def training_losses(self, output, batch):
        return self.bce(output, batch, torch.tensor(self.pos_weight))

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        found = (output > 0).double() * batch[LABEL]
        return torch.cat([found, batch[LABEL], self.losses(output, batch)[:, None]], 1).double()

    def score(self, predictions, labels):
        sums = np.average(predictions, axis=0, weights=labels)
        recall = sums[:4] / np.maximum(sums[4:8], 1e-12)
        return {"macro_recall": float(recall.mean()), "log_loss": float(sums[8])}

    def expected_initial_loss(self):
        return math.log(2)
