"""What a customer wants in the end of a thread: an encoder over its last words, masked mean.

data: shop_threads

[data]
label = "wish"
features = ["thread"]
text = ["thread"]
ids = ["row_id"]
meta = ["client"]

[training]
steps = 400
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 2e-3, weight_decay = 0.01 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""
import math
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, UNK = 0, 1
MAX_LENGTH = 40


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.dense = nn.Linear(dim, dim)

    def forward(self, x, attention_mask):
        split = lambda z: z.view(*z.shape[:2], self.heads, -1).transpose(1, 2)
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(attention_mask[:, None, None] == 0, -1e4)
        return self.dense((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim, heads=4, dropout=0.1):
        super().__init__()
        self.attention, self.norm1 = SelfAttention(dim, heads), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attention_mask):
        x = x + self.dropout(self.attention(self.norm1(x), attention_mask))
        return x + self.dropout(self.mlp(self.norm2(x)))


class ThreadClassifier(nn.Module):
    def __init__(self, vocab, classes, dim=48, layers=2):
        super().__init__()
        self.words = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.positions = nn.Embedding(MAX_LENGTH, dim)
        nn.init.normal_(self.words.weight, std=0.2)
        nn.init.normal_(self.positions.weight, std=0.2)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, input_ids, attention_mask):
        # Counted from the end: what decides stands there.
        place = attention_mask.flip(1).cumsum(1).flip(1).sub(1).clamp(min=0)
        x = self.words(input_ids) + self.positions(place)
        for layer in self.layers:
            x = layer(x, attention_mask)
        mask = attention_mask.unsqueeze(-1).to(x.dtype)
        pooled = (self.norm(x) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.classifier(pooled)


class ThreadWish(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy", "macro_f1")

    def fit(self, train):
        df = train.collect()
        counts = Counter(w for text in df["thread"] for w in text.lower().split())
        self.fitted = {
            "vocab": sorted(w for w, n in counts.items() if n >= 2),
            "wishes": sorted(df["wish"].unique()),
        }

    def encode(self, rows):
        index = {w: i + 2 for i, w in enumerate(self.fitted["vocab"])}
        input_ids = torch.full((rows.height, MAX_LENGTH), PAD)
        for i, text in enumerate(rows["thread"]):
            words = text.lower().split()[-MAX_LENGTH:]
            ids = [index.get(w, UNK) for w in words]
            input_ids[i, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        batch = {"input_ids": input_ids, "attention_mask": (input_ids != PAD).long()}
        if "wish" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["wishes"].index(w) for w in rows["wish"]])
        return batch

    def build_model(self):
        return ThreadClassifier(len(self.fitted["vocab"]) + 2, len(self.fitted["wishes"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
