"""A language model of reports for sailors: one transformer block in the manner of minGPT, on words.

Loss per word 0.71; 3.35 for the frequencies of the words.

data: sea_reports

[data]
label = "report"
features = ["report"]
text = ["report"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3, weight_decay = 0.05 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

PAD, START, UNK = 0, 1, 2
BLOCK = 64


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        mask = torch.tril(torch.ones(BLOCK, BLOCK, dtype=torch.bool))
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.qkv(x).view(b, t, 3, self.n_head, c // self.n_head).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(~self.mask[:t, :t], -1e9)
        y = att.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class SeaGPT(nn.Module):
    def __init__(self, vocab_size, n_embd=48):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(BLOCK, n_embd)
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head=4)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 2 * n_embd), nn.GELU(), nn.Linear(2 * n_embd, n_embd)
        )
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return self.lm_head(self.ln_f(x))


class SeaReports(Task):
    kind = "statistic"
    statistics = ("loss",)
    metrics = directions_of("perplexity", "mean_loss")
    tokens = "idx"

    def fit(self, train):
        reports = train.collect()["report"]
        self.fitted = {"itos": sorted({w for report in reports for w in report.split()})}

    def encode(self, rows):
        stoi = {w: i for i, w in enumerate(self.fitted["itos"], start=3)}
        data = torch.full((rows.height, BLOCK + 1), PAD)
        data[:, 0] = START
        for i, report in enumerate(rows["report"]):
            ids = [stoi.get(w, UNK) for w in report.split()][:BLOCK]
            data[i, 1 : len(ids) + 1] = torch.tensor(ids)
        target = data[:, 1:].contiguous()
        return {
            "idx": data[:, :-1].contiguous(),
            LABEL: target,
            WEIGHT: (target != PAD).sum(dim=1).float(),
        }

    def build_model(self):
        return SeaGPT(len(self.fitted["itos"]) + 3)

    def losses(self, output, batch):
        target = batch[LABEL]
        loss = F.cross_entropy(output.transpose(1, 2), target, ignore_index=PAD, reduction="none")
        return loss.sum(dim=1) / (target != PAD).sum(dim=1).clamp(min=1)
