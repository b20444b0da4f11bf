"""Failed sessions in server logs: line codes with the time before each, a gated CNN, rare positives weighed up in training.

data: log_sessions

[data]
label = "failed"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

T = 36


class GatedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.conv = nn.Conv1d(d, 2 * d, 3, padding=1)

    def forward(self, x, mask):
        h = self.norm(x) * mask
        h = self.conv(h.transpose(1, 2)).transpose(1, 2)
        return x + nn.functional.glu(h, dim=-1)


class SessionNet(nn.Module):
    def __init__(self, n_codes, prior, d=32):
        super().__init__()
        self.code = nn.Embedding(n_codes, d, padding_idx=0)
        self.wait = nn.Linear(1, d)
        self.blocks = nn.ModuleList([GatedBlock(d), GatedBlock(d)])
        self.last = nn.Embedding(n_codes, d)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(3 * d, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, prior)

    def forward(self, codes, waits):
        mask = (codes != 0).unsqueeze(-1)
        x = self.code(codes) + self.wait(waits.unsqueeze(-1))
        for block in self.blocks:
            x = block(x, mask)
        top = x.masked_fill(~mask, -1e4).amax(1)
        mean = (x * mask).sum(1) / mask.sum(1).clamp(min=1)
        end = codes.gather(1, mask.sum(1).sub(1).clamp(min=0)).squeeze(1)
        return self.head(self.drop(torch.cat([top, mean, self.last(end)], 1))).squeeze(1)


class LogAnomaly(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc")

    def fit(self, train):
        df = train.collect()
        codes = sorted(df["events"].explode().unique().to_list())
        log_wait = df["waits_ms"].explode().log1p()
        p = df["failed"].mean()
        self.fitted = dict(codes=codes, mean=log_wait.mean(), std=log_wait.std(), p=p)

    def encode(self, rows):
        f = self.fitted
        index = {c: i + 2 for i, c in enumerate(f["codes"])}
        codes = torch.zeros(len(rows), T, dtype=torch.long)
        waits = torch.zeros(len(rows), T)
        for i, (events, ms) in enumerate(rows.select("events", "waits_ms").iter_rows()):
            events, ms = events[-T:], ms[-T:]
            codes[i, : len(events)] = torch.tensor([index.get(e, 1) for e in events])
            waits[i, : len(ms)] = (torch.tensor(ms).log1p() - f["mean"]) / f["std"]
        batch = {"codes": codes, "waits": waits}
        if "failed" in rows.columns:
            batch[LABEL] = torch.tensor(rows["failed"].to_list()).float()
        return batch

    def build_model(self):
        p = self.fitted["p"]
        return SessionNet(len(self.fitted["codes"]) + 2, math.log(p / (1 - p)))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return self.losses(output, batch) * torch.where(batch[LABEL] > 0, 3.0, 1.0)

    def expected_initial_loss(self):
        p = self.fitted["p"]
        return -p * math.log(p) - (1 - p) * math.log(1 - p)
