"""Keys found by their silhouette: circle loss over all pairs of a batch, unit vectors, nearest neighbour among those that are judged together.

data: keys

[data]
label = "key"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.task import LABEL, Task

GALLERY = 128
M, GAMMA = 0.25, 16.0


class KeyNet(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.PReLU(),
            nn.MaxPool2d((2, 1)),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.PReLU(),
            nn.MaxPool2d(2),
        )
        self.embedding = nn.Linear(32 * 3 * 12, dim, bias=False)

    def forward(self, key):
        return F.normalize(self.embedding(self.cnn(key).flatten(1)))


def circle_loss(z, y):
    sim = z @ z.T
    same = y[:, None] == y[None, :]
    eye = torch.eye(len(z), dtype=torch.bool, device=z.device)
    pos, neg = same & ~eye, ~same
    alpha_p = (1 + M - sim.detach()).clamp(min=0)
    alpha_n = (sim.detach() + M).clamp(min=0)
    logit_p = (-GAMMA * alpha_p * (sim - (1 - M))).masked_fill(~pos, float("-inf"))
    logit_n = (GAMMA * alpha_n * (sim - M)).masked_fill(~neg, float("-inf"))
    loss = F.softplus(torch.logsumexp(logit_n, 1) + torch.logsumexp(logit_p, 1))
    return torch.where(pos.any(1) & neg.any(1), loss, torch.zeros_like(loss))


class KeySearch(Task):
    kind = "statistic"
    needs_whole_batch = True
    metrics = {"recall_at_one": "maximize"}
    scored_together = GALLERY
    scoring_rows = GALLERY * 8

    def fit(self, train):
        self.fitted = {"keys": train.collect()["key"].unique().sort().to_list()}

    def encode(self, rows):
        x = np.array(rows["silhouette"].to_list(), dtype=np.float32).reshape(-1, 1, 12, 24)
        batch = {"key": torch.from_numpy((x - 120) / 60)}
        if "key" in rows.columns:
            number = {k: i for i, k in enumerate(self.fitted["keys"])}
            batch[LABEL] = torch.tensor([number[k] for k in rows["key"]])
        return batch

    def build_model(self):
        return KeyNet()

    def training_losses(self, output, batch):
        return circle_loss(output, batch[LABEL])

    def losses(self, output, batch):
        pairs = zip(output.split(GALLERY), batch[LABEL].split(GALLERY))
        return torch.cat([circle_loss(z, y) for z, y in pairs])

    def statistic(self, output, batch):
        hits = []
        for z, y in zip(output.split(GALLERY), batch[LABEL].split(GALLERY)):
            sim = (z @ z.T).fill_diagonal_(-2)
            mate = (y[:, None] == y[None]).sum(1) > 1
            hits.append(torch.stack([(y[sim.argmax(1)] == y) & mate, mate], 1))
        return torch.cat(hits).double()

    def score(self, predictions, labels):
        hit, mate = (predictions * labels[:, None]).sum(0)
        return {"recall_at_one": float(hit / mate)}
