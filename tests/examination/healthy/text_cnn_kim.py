"""Kim's convolutions for sentences: three widths, max over time, dropout.

data: plot_or_table

[data]
label = "is_plot"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 50
micro_batch_size = 25
optimizer = { learning_rate = 2e-3 }
"""
import math
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class CNN_Text(nn.Module):
    def __init__(self, V, D=32, Co=24, Ks=(3, 4, 5)):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.convs = nn.ModuleList([nn.Conv2d(1, Co, (K, D)) for K in Ks])
        self.dropout = nn.Dropout(0.3)
        self.fc1 = nn.Linear(len(Ks) * Co, 1)

    def forward(self, x):
        x = self.embed(x).unsqueeze(1)
        x = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        x = [F.max_pool1d(i, i.size(2)).squeeze(2) for i in x]
        return self.fc1(self.dropout(torch.cat(x, 1))).squeeze(1)


class KimCNN(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "log_loss")
    L = 60

    def fit(self, train):
        freq = Counter(w for t in train.collect()["text"] for w in t.lower().split())
        self.vocab = [w for w, c in sorted(freq.items()) if c >= 3]

    def state(self):
        return {"vocab": self.vocab}

    def load_state(self, state):
        self.vocab = list(state["vocab"])

    def encode(self, rows):
        lookup = dict(zip(self.vocab, range(2, len(self.vocab) + 2)))
        ids = [[lookup.get(w, 1) for w in t.lower().split()[: self.L]] for t in rows["text"]]
        x = torch.tensor([row + [0] * (self.L - len(row)) for row in ids])
        if "is_plot" not in rows.columns:
            return {"x": x}
        return {"x": x, LABEL: torch.tensor(rows["is_plot"].to_list()).float()}

    def build_model(self):
        return CNN_Text(len(self.vocab) + 2)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)

    def expected_initial_loss(self):
        return math.log(2)
