"""A character LSTM after Karpathy: each character predicts the next.

data: corpus

[data]
label = "text"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[skeleton]
sample_rows = 256
batch_rows = 32

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 16
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

SEQ = 96


class CharRNN(nn.Module):
    def __init__(self, n_chars, n_hidden=96):
        super().__init__()
        self.emb = nn.Embedding(n_chars, 32)
        self.lstm = nn.LSTM(32, n_hidden, batch_first=True)
        self.fc = nn.Linear(n_hidden, n_chars)

    def forward(self, x):
        out, _ = self.lstm(self.emb(x))
        return self.fc(out)


class CharLM(Task):
    kind = "statistic"
    metrics = {"bits_per_char": "minimize"}

    def fit(self, train):
        self.chars = ["\x00", "\x01"] + sorted(set("".join(train.select("text").collect()["text"])) - {"\x00", "\x01"})

    def state(self):
        return {"chars": self.chars}

    def load_state(self, state):
        self.chars = state["chars"]

    def encode(self, rows):
        char2int = {c: i for i, c in enumerate(self.chars)}
        x = torch.zeros(len(rows), SEQ, dtype=torch.long)
        y = torch.full((len(rows), SEQ), -100)
        for i, text in enumerate(rows["text"]):
            ids = torch.tensor([0] + [char2int.get(c, 1) for c in text])[: SEQ + 1]
            x[i, : len(ids) - 1], y[i, : len(ids) - 1] = ids[:-1], ids[1:]
        return {"x": x, LABEL: y, WEIGHT: (y != -100).sum(1).float()}

    def build_model(self):
        return CharRNN(len(self.chars))

    def losses(self, output, batch):
        token = F.cross_entropy(output.transpose(1, 2), batch[LABEL], reduction="none", ignore_index=-100)
        return token.sum(1) / (batch[LABEL] != -100).sum(1).clamp(min=1)

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"bits_per_char": float(np.average(predictions.reshape(-1), weights=labels) / math.log(2))}

    def expected_initial_loss(self):
        return math.log(len(self.chars))
