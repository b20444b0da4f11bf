"""Shares of five raters' votes: divergence from the votes, with a trunk of three residual blocks.

data: raters

[data]
label = "votes"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


def block(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1))


class Votes(nn.Module):
    def __init__(self, n, width=48):
        super().__init__()
        self.stem = nn.Linear(n, width)
        self.blocks = nn.ModuleList([block(width) for _ in range(3)])
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        h = self.stem(x)
        for layer in self.blocks:
            h = h + layer(h)
        return self.head(h).log_softmax(-1)


class RaterShares(Task):
    kind = "statistic"
    metrics = {"divergence": "minimize", "agrees": "maximize"}
    serves_predictions = True

    def encode(self, rows):
        x = rows.select(sorted(self.columns.features)).to_numpy()
        batch = {"x": torch.tensor(x, dtype=torch.float32)}
        if "votes" in rows.columns:
            batch[LABEL] = torch.tensor(rows["votes"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Votes(len(self.columns.features))

    def losses(self, output, batch):
        return nn.functional.kl_div(output, batch[LABEL], reduction="none").sum(1)

    def predict(self, output):
        return output.exp()

    def statistic(self, output, batch):
        agrees = output.argmax(1) == batch[LABEL].argmax(1)
        return torch.stack([self.losses(output, batch), agrees.float()], 1)

    def score(self, predictions, labels):
        divergence, agrees = np.average(predictions, axis=0, weights=labels)
        return {"divergence": float(divergence), "agrees": float(agrees)}
