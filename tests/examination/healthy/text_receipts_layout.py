"""Vendor, date and total of scanned receipts: LayoutLM from scratch, a word's vector is the sum of
its shape's and of four embedded box coordinates; a receipt's loss is a mean over its words.

data: scanned_receipts

[data]
label = "tags"
features = ["words", "boxes"]
group = "vendor_key"
ids = ["row_id", "document"]

[split]
method = "group"

[training]
steps = 350
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import re
from collections import Counter
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

TAGS = ["other", "vendor", "date", "total"]
IGNORE = -100
MAX_WORDS = 32
CELLS = 50  # of twenty thousandths


def shape(word: str) -> str:
    """12.50 becomes 00.00, so that prices and dates need no vocabulary."""
    return re.sub(r"[0-9]", "0", word.lower()) if any(c.isdigit() for c in word) else word.lower()


class LayoutEmbeddings(nn.Module):
    def __init__(self, n_words: int, d: int):
        super().__init__()
        self.word = nn.Embedding(n_words, d, padding_idx=0)
        self.x = nn.Embedding(CELLS + 1, d)
        self.y = nn.Embedding(CELLS + 1, d)
        self.w = nn.Embedding(CELLS + 1, d)
        self.case = nn.Linear(1, d, bias=False)
        self.norm = nn.LayerNorm(d, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        for table in (self.word, self.x, self.y, self.w):
            nn.init.normal_(table.weight, std=0.1)
        self.word.weight.data[0] = 0

    def forward(self, ids, boxes, upper):
        x0, y0, x1, _ = boxes.unbind(-1)
        place = self.x(x0) + self.y(y0) + self.w((x1 - x0).clamp(0, CELLS))
        return self.dropout(self.norm(self.word(ids) + place + self.case(upper[..., None])))


class Block(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.dropout = nn.Dropout(0.1)

    def forward(self, h, bias):
        n, t, d = h.shape
        q, k, v = self.qkv(self.norm1(h)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        h = h + self.dropout(self.proj(seen.transpose(1, 2).reshape(n, t, d)))
        return h + self.dropout(self.mlp(self.norm2(h)))


class LayoutModel(nn.Module):
    def __init__(self, n_words: int, d: int = 48, layers: int = 2, heads: int = 4):
        super().__init__()
        self.embeddings = LayoutEmbeddings(n_words, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        # how two words lie to each other, which absolute places alone do not say to new vendors
        self.relative = nn.Embedding(2 * CELLS + 1, heads)
        nn.init.zeros_(self.relative.weight)
        self.norm = nn.LayerNorm(d)
        self.classifier = nn.Linear(d, len(TAGS))

    def forward(self, ids, boxes, upper):
        y = boxes[..., 1]
        bias = self.relative(y[:, None, :] - y[:, :, None] + CELLS).permute(0, 3, 1, 2)
        bias = bias.masked_fill((ids == 0)[:, None, None, :], float("-inf"))
        h = self.embeddings(ids, boxes, upper)
        for block in self.blocks:
            h = block(h, bias)
        return self.classifier(self.norm(h))


class ReceiptFields(Task):
    kind = "statistic"
    metrics: ClassVar = {"field_f1": "maximize", "whole_receipts": "maximize"}
    serves_predictions = True

    def fit(self, train):
        words = train.select("words").collect()["words"]
        seen = Counter(shape(w) for doc in words for w in doc)
        self.fitted = {"shapes": [s for s, n in sorted(seen.items()) if n >= 4]}

    def encode(self, rows):
        ids_of = {s: i for i, s in enumerate(self.fitted["shapes"], start=2)}
        n = rows.height
        ids = np.zeros((n, MAX_WORDS), dtype=np.int64)
        boxes = np.zeros((n, MAX_WORDS, 4), dtype=np.int64)
        upper = np.zeros((n, MAX_WORDS), dtype=np.float32)
        for k, (words, places) in enumerate(zip(rows["words"].to_list(), rows["boxes"].to_list())):
            words, places = words[:MAX_WORDS], places[:MAX_WORDS]
            ids[k, : len(words)] = [ids_of.get(shape(w), 1) for w in words]
            boxes[k, : len(words)] = np.array(places) * CELLS // 1000
            upper[k, : len(words)] = [sum(c.isupper() for c in w) / len(w) for w in words]
        batch = {
            "ids": torch.from_numpy(ids),
            "boxes": torch.from_numpy(boxes),
            "upper": torch.from_numpy(upper),
        }
        if "tags" in rows.columns:
            tags = np.full((n, MAX_WORDS), IGNORE)
            for k, doc in enumerate(rows["tags"].to_list()):
                doc = doc[:MAX_WORDS]
                tags[k, : len(doc)] = [TAGS.index(t) for t in doc]
            batch[LABEL] = torch.from_numpy(tags)
            batch[WEIGHT] = torch.from_numpy((tags != IGNORE).sum(1).astype(np.float32))
        return batch

    def build_model(self):
        return LayoutModel(len(self.fitted["shapes"]) + 2)

    def losses(self, output, batch):
        tags = batch[LABEL]
        each = nn.functional.cross_entropy(
            output.transpose(1, 2), tags, ignore_index=IGNORE, reduction="none"
        )
        return each.sum(1) / (tags != IGNORE).sum(1)

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        tags, said = batch[LABEL], output.argmax(-1)
        real = tags != IGNORE
        hit = ((said == tags) & (tags > 0)).sum(1)
        claimed, there = ((said > 0) & real).sum(1), (tags > 0).sum(1)
        whole = ((said == tags) | ~real).all(1)
        return torch.stack([hit, claimed, there, whole], 1).double()

    def score(self, predictions, labels):
        hit, claimed, there, whole = predictions.T
        return {
            "field_f1": float(2 * hit.sum() / (claimed.sum() + there.sum())),
            "whole_receipts": float(whole.mean()),
        }
