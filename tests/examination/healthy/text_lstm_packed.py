"""An LSTM over packed sequences; lengths travel with the tokens.

data: reviews

[data]
label = "sentiment"
features = ["review"]
text = ["review"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SentimentLSTM(nn.Module):
    def __init__(self, n_vocab, emb=32, hidden=48):
        super().__init__()
        self.embedding = nn.Embedding(n_vocab, emb, padding_idx=0)
        self.lstm = nn.LSTM(emb, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        return self.fc(hidden[-1]).squeeze(1)


class ReviewLSTM(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "log_loss")
    max_len = 48

    def fit(self, train):
        words = train.select("review").collect()["review"].str.split(" ").explode().unique().sort()
        self.vocab = ["<pad>", "<unk>"] + words.to_list()

    def state(self):
        return {"vocab": self.vocab}

    def load_state(self, state):
        self.vocab = state["vocab"]

    def encode(self, rows):
        index = {w: i for i, w in enumerate(self.vocab)}
        seqs = [torch.tensor([index.get(w, 1) for w in r.split(" ")][: self.max_len]) for r in rows["review"]]
        lengths = torch.tensor([len(s) for s in seqs])
        tokens = pad_sequence([*seqs, torch.zeros(self.max_len, dtype=torch.long)], batch_first=True)[:-1]
        out = {"tokens": tokens, "lengths": lengths}
        if "sentiment" in rows.columns:
            out[LABEL] = torch.tensor(rows["sentiment"].to_list(), dtype=torch.float32)
        return out

    def build_model(self):
        return SentimentLSTM(len(self.vocab))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)

    def expected_initial_loss(self):
        return math.log(2)
