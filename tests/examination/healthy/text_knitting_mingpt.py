"""Knitting patterns by a minGPT: dataclass config, one block class, tokens are words.

data: knitting_patterns

[data]
label = "pattern"
features = ["pattern"]
text = ["pattern"]
ids = ["row_id"]

[training]
steps = 260
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3, weight_decay = 0.1 }
schedule = { shape = "cosine" }
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

PAD, BOS, EOS, UNK = range(4)
IGNORE = -100


@dataclass
class GPTConfig:
    vocab_size: int
    block_size: int = 72
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64
    dropout: float = 0.1


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", mask.view(1, 1, *mask.shape), persistent=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
            nn.Dropout(config.dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Knitting(Task):
    kind = "statistic"
    statistics = ("loss",)
    metrics = directions_of("perplexity")
    tokens = "idx"

    def fit(self, train):
        words = set()
        for text in train.select("pattern").collect()["pattern"]:
            words.update(text.split())
        self.fitted = {"itos": ["<pad>", "<bos>", "<eos>", "<unk>", *sorted(words)]}

    def encode(self, rows):
        stoi = {word: i for i, word in enumerate(self.fitted["itos"])}
        size = GPTConfig.block_size
        idx = torch.full((rows.height, size), PAD)
        targets = torch.full((rows.height, size), IGNORE)
        for i, text in enumerate(rows["pattern"]):
            ids = [BOS] + [stoi.get(w, UNK) for w in (text or "").split()] + [EOS]
            ids = torch.tensor(ids[: size + 1])
            idx[i, : len(ids) - 1] = ids[:-1]
            targets[i, : len(ids) - 1] = ids[1:]
        weight = (targets != IGNORE).sum(dim=1).float()
        return {"idx": idx, LABEL: targets, WEIGHT: weight}

    def build_model(self):
        return GPT(GPTConfig(vocab_size=len(self.fitted["itos"])))

    def losses(self, output, batch):
        y = batch[LABEL]
        loss = F.cross_entropy(output.transpose(1, 2), y, ignore_index=IGNORE, reduction="none")
        return loss.sum(dim=1) / (y != IGNORE).sum(dim=1)

    def expected_initial_loss(self):
        return math.log(len(self.fitted["itos"]))
