"""nanoGPT, small: learned positions, causal flash attention, tied head.

data: corpus

[data]
label = "text"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[skeleton]
sample_rows = 256
batch_rows = 32
training_steps = 60

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

from perennial.engine.task import LABEL, WEIGHT, Task


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 129
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head, self.n_embd = config.n_head, config.n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.mlp = nn.Sequential(nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            torch.nn.init.zeros_(module.bias)

    def forward(self, idx):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class NanoGPT(Task):
    kind = "statistic"
    statistics = ("loss", "bytes")
    metrics = {"bits_per_byte": "minimize", "perplexity": "minimize"}
    config = GPTConfig()

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def encode(self, rows):
        T = self.config.block_size
        data = np.full((len(rows), T + 1), 128, dtype=np.int64)
        used = np.zeros(len(rows), dtype=np.float32)
        for i, text in enumerate(rows["text"]):
            raw = text.encode("ascii", errors="replace")[:T]
            data[i, 1 : len(raw) + 1] = list(raw)
            used[i] = len(raw)
        x, y = torch.from_numpy(data[:, :-1].copy()), torch.from_numpy(data[:, 1:].copy())
        y[torch.arange(T)[None] >= torch.from_numpy(used)[:, None]] = -1
        return {"idx": x, LABEL: y, WEIGHT: torch.from_numpy(used)}

    def build_model(self):
        return GPT(self.config)

    def losses(self, output, batch):
        y = batch[LABEL]
        loss = F.cross_entropy(output.view(-1, output.size(-1)), y.view(-1), ignore_index=-1, reduction="none")
        return loss.view_as(y).sum(-1) / (y >= 0).sum(-1).clamp(min=1)

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        loss = self.losses(output, batch)
        return torch.stack([loss, torch.ones_like(loss)], 1)

    def expected_initial_loss(self):
        return math.log(self.config.vocab_size)
