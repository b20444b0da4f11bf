"""Encoder and decoder: a GRU reads a day and a half, another writes six hours, each from the last.

data: meter

[data]
label = "ahead"
time = "hour"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

STEPS = 6


class Seq2Seq(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.encoder = nn.GRU(1, hidden, batch_first=True)
        self.decoder = nn.GRUCell(1, hidden)
        self.fc = nn.Linear(hidden, 1)
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, seen):
        _, state = self.encoder(seen.unsqueeze(-1))
        hidden, last, written = state[0], seen[:, -1:], []
        for _ in range(STEPS):
            hidden = self.decoder(last, hidden)
            last = last + self.fc(hidden)
            written.append(last)
        return torch.cat(written, dim=1)


class MeterAhead(Task):
    kind = "statistic"
    metrics = {"mae": "minimize"}

    def fit(self, train):
        df = train.select("seen", "ahead").collect()
        seen, ahead = np.array(df["seen"].to_list()), np.array(df["ahead"].to_list())
        mean, std = float(seen.mean()), float(seen.std())
        naive = ((ahead - seen[:, -1:]) / std) ** 2
        self.fitted = {"mean": mean, "std": std, "naive": float(naive.mean())}

    def scaled(self, column):
        values = torch.tensor(column.to_list(), dtype=torch.float32)
        return (values - self.fitted["mean"]) / self.fitted["std"]

    def encode(self, rows):
        batch = {"seen": self.scaled(rows["seen"])}
        if "ahead" in rows.columns:
            batch[LABEL] = self.scaled(rows["ahead"])
        return batch

    def build_model(self):
        return Seq2Seq()

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(1)

    def predict(self, output):
        return output * self.fitted["std"] + self.fitted["mean"]

    def statistic(self, output, batch):
        return ((output - batch[LABEL]).abs().mean(1) * self.fitted["std"]).double()

    def score(self, predictions, labels):
        return {"mae": float(np.average(predictions.ravel(), weights=labels))}

    def expected_initial_loss(self):
        return self.fitted["naive"]
