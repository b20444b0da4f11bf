"""LambdaRank: pairs of candidates weighed by what their exchange would change in NDCG, judged by NDCG at 3.

data: graded_lists

[data]
label = "grade"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from perennial.engine.task import LABEL, Task

WIDTH = 8
NONE = -1


def discounts(ranks):
    return 1 / torch.log2(ranks.float() + 2)


class Scorer(nn.Module):
    """Each candidate sees the others' mean and best before it is scored."""

    def __init__(self, fields=3, hidden=24):
        super().__init__()
        self.inner = nn.Linear(fields, hidden)
        self.outer = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.ELU(), nn.Linear(hidden, 1, bias=False))

    def forward(self, docs, mask):
        h = F.elu(self.inner(docs))
        m = mask.unsqueeze(-1)
        mean = (h * m).sum(1, keepdim=True) / m.sum(1, keepdim=True).clamp(min=1)
        best = h.masked_fill(~m, -2.0).amax(1, keepdim=True)
        h = torch.cat([h, mean.expand_as(h), best.expand_as(h)], dim=-1)
        return self.outer(h).squeeze(-1).masked_fill(~mask, -1e3)


class LambdaRank(Task):
    kind = "statistic"
    metrics = {"ndcg_at_3": "maximize"}

    def encode(self, rows):
        docs = [torch.tensor(r).T[:WIDTH] for r in rows.select("match", "freshness", "length").iter_rows()]
        sizes = torch.tensor([len(d) for d in docs])
        x = torch.zeros(len(docs), WIDTH, 3)
        padded = pad_sequence(docs, batch_first=True)
        x[:, : padded.shape[1]] = padded
        batch = {"docs": x, "mask": torch.arange(WIDTH) < sizes[:, None]}
        if "grade" in rows.columns:
            grade = torch.full((len(docs), WIDTH), NONE)
            for i, g in enumerate(rows["grade"].to_list()):
                grade[i, : len(g[:WIDTH])] = torch.tensor(g[:WIDTH])
            batch[LABEL] = grade
        return batch

    def build_model(self):
        return Scorer()

    def losses(self, output, batch):
        grade = batch[LABEL]
        real = grade != NONE
        gain = (2.0 ** grade.clamp(min=0) - 1) * real
        ideal = (gain.sort(dim=1, descending=True).values * discounts(torch.arange(WIDTH, device=gain.device))).sum(1)
        with torch.no_grad():  # the weights of pairs are constants
            rank = output.argsort(dim=1, descending=True).argsort(dim=1)
            d = discounts(rank)
            delta = (gain[:, :, None] - gain[:, None, :]).abs() * (d[:, :, None] - d[:, None, :]).abs()
            delta = delta / ideal.clamp(min=1)[:, None, None]
        better = (grade[:, :, None] > grade[:, None, :]) & real[:, :, None] & real[:, None, :]
        margin = output[:, :, None] - output[:, None, :]
        return (F.softplus(-margin) * delta * better).sum((1, 2))

    def statistic(self, output, batch):
        gain = (2.0 ** batch[LABEL].clamp(min=0) - 1).double()
        d = discounts(torch.arange(3, device=gain.device)).double()
        found = (gain.gather(1, output.topk(3, dim=1).indices) * d).sum(1)
        best = (gain.topk(3, dim=1).values * d).sum(1)
        return torch.where(best > 0, found / best.clamp(min=1e-9), 1.0)

    def score(self, predictions, labels):
        return {"ndcg_at_3": float(np.average(predictions.ravel(), weights=labels))}
