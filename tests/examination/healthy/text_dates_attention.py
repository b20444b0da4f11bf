"""Written dates to digits (the attention exercise of a well-known course): eight queries look at a bidirectional GRU.

data: written_dates

[data]
label = "digits"
features = ["written"]
text = ["written"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 6e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

Tx, Ty = 28, 8
PAD, UNK = 0, 1


class DateReader(nn.Module):
    def __init__(self, n_chars, n_a=24):
        super().__init__()
        self.chars = nn.Embedding(n_chars, 24, padding_idx=PAD)
        self.pre = nn.GRU(24, n_a, bidirectional=True, batch_first=True)
        self.queries = nn.Parameter(torch.randn(Ty, 2 * n_a) * 0.1)
        self.keys = nn.Linear(2 * n_a, 2 * n_a)
        self.post = nn.Sequential(nn.Linear(4 * n_a, 48), nn.ReLU(), nn.Linear(48, 10))

    def forward(self, human):
        a, _ = self.pre(self.chars(human))                          # (m, Tx, 2 n_a)
        energies = self.queries @ self.keys(a).transpose(1, 2)      # (m, Ty, Tx)
        energies = energies / math.sqrt(a.shape[-1])
        energies = energies.masked_fill((human == PAD)[:, None, :], -1e4)
        alphas = energies.softmax(dim=2)
        context = alphas @ a                                        # (m, Ty, 2 n_a)
        queries = self.queries.expand(len(a), -1, -1)
        return self.post(torch.cat([context, queries], dim=2))      # (m, Ty, 10)


class DateTranslation(Task):
    kind = "statistic"
    metrics = {"digit_accuracy": "maximize", "date_accuracy": "maximize"}

    def fit(self, train):
        text = "".join(train.select("written").collect()["written"].to_list())
        self.fitted = {"human_vocab": ["<pad>", "<unk>", *sorted(set(text))]}

    def encode(self, rows):
        char_to_ix = {c: i for i, c in enumerate(self.fitted["human_vocab"])}
        X = np.full((rows.height, Tx), PAD)
        for i, text in enumerate(rows["written"]):
            ix = [char_to_ix.get(c, UNK) for c in text][:Tx]
            X[i, : len(ix)] = ix
        batch = {"human": torch.from_numpy(X)}
        if "digits" in rows.columns:
            batch[LABEL] = torch.tensor([[int(c) for c in digits] for digits in rows["digits"]])
        return batch

    def build_model(self):
        return DateReader(len(self.fitted["human_vocab"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output.transpose(1, 2), batch[LABEL], reduction="none").mean(dim=1)

    def predict(self, output):
        return output.argmax(dim=-1)

    def statistic(self, output, batch):
        right = output.argmax(dim=-1) == batch[LABEL]
        return torch.stack([right.double().mean(1), right.all(1).double()], dim=1)

    def score(self, predictions, labels):
        digit, date = np.average(predictions, axis=0, weights=labels)
        return {"digit_accuracy": float(digit), "date_accuracy": float(date)}

    def expected_initial_loss(self):
        return math.log(10)
