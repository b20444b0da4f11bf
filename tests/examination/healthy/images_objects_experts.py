"""A soft choice among four small experts (mixture of experts), whose even use is an auxiliary loss; brightness and hue jitter.

data: objects

[data]
label = "kind"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

CLASSES = ["boat", "house", "ring", "sun", "tree"]


class MoE(nn.Module):
    def __init__(self, dim, hidden, experts=4, k=2):
        super().__init__()
        self.k, self.experts = k, experts
        self.router = nn.Linear(dim, experts, bias=False)
        self.w_in = nn.Parameter(torch.empty(experts, dim, hidden))
        self.w_out = nn.Parameter(torch.empty(experts, hidden, dim))
        for w in (self.w_in, self.w_out):
            nn.init.normal_(w, std=w.shape[1] ** -0.5)
        self.balance = None

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        top, chosen = probs.topk(self.k, dim=-1)
        gate = torch.zeros_like(probs).scatter(1, chosen, top / top.sum(-1, keepdim=True))
        if self.training:  # Switch Transformers: share of tokens times share of probability
            share = (gate > 0).float().mean(0).detach()
            self.balance = self.experts / self.k * (probs * share).sum(-1)
        h = F.gelu(torch.einsum("bd,edh->beh", x, self.w_in))
        return torch.einsum("beh,ehd,be->bd", h, self.w_out, gate)


class Net(nn.Module):
    def __init__(self, c=16, dim=64):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, c, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(c, 2 * c, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(2 * c * 25, dim),
        )
        self.norm = nn.LayerNorm(dim)
        self.moe = MoE(dim, 48)
        self.head = nn.Linear(dim, len(CLASSES))

    def forward(self, x):
        h = self.stem(x)
        return self.head(h + self.moe(self.norm(h)))


class Objects(Task):
    kind = "multiclass"

    def encode(self, rows):
        x = np.array(rows["pixels"].to_list(), dtype=np.float32).reshape(-1, 20, 20, 3)
        batch = {"x": torch.from_numpy(x / 127.5 - 1).permute(0, 3, 1, 2).contiguous()}
        if "kind" in rows.columns:
            batch[LABEL] = torch.tensor([CLASSES.index(k) for k in rows["kind"]])
        return batch

    def augment(self, batch, generator):
        n = len(batch["x"])
        gain = 1 + 0.2 * (2 * torch.rand(n, 1, 1, 1, generator=generator) - 1)
        shift = 0.1 * torch.randn(n, 3, 1, 1, generator=generator)
        return {**batch, "x": (batch["x"] * gain + shift).clamp(-1, 1)}

    def build_model(self):
        return Net()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def auxiliary_losses(self, model):
        return 0.02 * model.moe.balance
