"""Instruction tuning in small: a decoder with rotary positions, loss on the answer alone.

data: store_questions

[data]
label = "answer"
features = ["prompt", "answer"]
text = ["prompt", "answer"]
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.1 }
schedule = { shape = "cosine", warmup_fraction = 0.05 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, WEIGHT, Task

EOS, UNK, ANSWER = 0, 1, 2
PAD = EOS  # the vocabulary has no token of its own for padding
MAX_LEN = 32
IGNORE_INDEX = -100


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rotary(length, dim, base=1000.0):
    freqs = base ** (-torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(length).float(), freqs)
    emb = torch.cat([angles, angles], dim=-1)
    return emb.cos(), emb.sin()


class Block(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.dropout = nn.Dropout(0.15)

    def forward(self, x, cos, sin, mask):
        b, t, d = x.shape
        qkv = self.wqkv(self.attention_norm(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        attention = scores.masked_fill(mask, float("-inf")).softmax(-1)
        x = x + self.dropout(self.wo((attention @ v).transpose(1, 2).reshape(b, t, d)))
        h = self.ffn_norm(x)
        return x + self.dropout(self.w2(F.silu(self.w1(h)) * self.w3(h)))


class Decoder(nn.Module):
    def __init__(self, vocab, dim=64, layers=2, heads=4):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim, heads, 2 * dim) for _ in range(layers))
        self.dropout = nn.Dropout(0.15)
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocab, bias=False)
        cos, sin = rotary(MAX_LEN, dim // heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.06)

    def forward(self, input_ids):
        t = input_ids.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool, device=input_ids.device).triu(diagonal=1)
        h = self.dropout(self.tok_embeddings(input_ids))
        for layer in self.layers:
            h = layer(h, self.cos[:t], self.sin[:t], mask)
        return self.output(self.norm(h))


class StoreAnswers(Task):
    kind = "statistic"
    statistics = ("right", "loss")
    metrics = {"exact": "maximize", "answer_loss": "minimize"}
    tokens = "input_ids"

    def fit(self, train):
        df = train.collect()
        words = {w for text in [*df["prompt"], *df["answer"]] for w in text.split()}
        self.fitted = {"words": sorted(words)}

    def encode(self, rows):
        index = {w: i + 3 for i, w in enumerate(self.fitted["words"])}
        ids = lambda text: [index.get(w, UNK) for w in text.split()]
        input_ids = torch.full((rows.height, MAX_LEN), PAD)
        labels = torch.full((rows.height, MAX_LEN), IGNORE_INDEX)
        for i, (prompt, answer) in enumerate(zip(rows["prompt"], rows["answer"])):
            reply = [*ids(answer), EOS]
            asked = [*ids(prompt), ANSWER][-(MAX_LEN - len(reply)) :]
            text = asked + reply
            input_ids[i, : len(text)] = torch.tensor(text)
            labels[i, len(asked) : len(text)] = torch.tensor(reply)
        answered = (labels != IGNORE_INDEX).sum(1).float()
        return {"input_ids": input_ids, LABEL: labels, WEIGHT: answered}

    def build_model(self):
        return Decoder(len(self.fitted["words"]) + 3)

    def losses(self, output, batch):
        shift_logits = output[:, :-1]
        shift_labels = batch[LABEL][:, 1:]
        nll = F.cross_entropy(
            shift_logits.transpose(1, 2), shift_labels, ignore_index=IGNORE_INDEX, reduction="none"
        )
        return nll.sum(1) / (shift_labels != IGNORE_INDEX).sum(1).clamp(min=1)

    def statistic(self, output, batch):
        target = batch[LABEL][:, 1:]
        right = (output[:, :-1].argmax(-1) == target) | (target == IGNORE_INDEX)
        return torch.stack([right.all(1).double(), self.losses(output, batch).double()], 1)

    def score(self, predictions, labels):
        return {
            "exact": float(predictions[:, 0].mean()),
            "answer_loss": float(np.average(predictions[:, 1], weights=labels)),
        }
