"""Prices of second-hand listings (Kaggle's Mercari): words, brand and category, log1p of the price.

data: market_listings

[data]
label = "price"
time = "listed"
features = ["title", "description", "brand", "category", "condition", "seller_ships"]
ids = ["row_id"]
text = ["title", "description"]

[training]
steps = 450
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
schedule = { shape = "cosine" }
"""
import re
from collections import Counter

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NAME_LEN = 8
DESC_LEN = 32
MISSING = "missing"


def words_of(text):
    return re.findall(r"[a-z0-9&]+", (text or "").lower())


class MercariNet(nn.Module):
    def __init__(self, n_words, n_brands, n_main, n_sub, mean_log_price):
        super().__init__()
        self.words = nn.Embedding(n_words, 20, padding_idx=0)
        self.brand = nn.Embedding(n_brands, 6)
        self.main = nn.Embedding(n_main, 4)
        self.sub = nn.Embedding(n_sub, 6)
        self.condition = nn.Embedding(6, 3)
        self.mlp = nn.Sequential(
            nn.Linear(20 + 20 + 6 + 4 + 6 + 3 + 1, 64), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1),
        )
        nn.init.constant_(self.mlp[-1].bias, mean_log_price)

    def pooled(self, tokens):
        there = (tokens > 0).float().unsqueeze(-1)
        return (self.words(tokens) * there).sum(1) / there.sum(1).clamp(min=1)

    def forward(self, name, desc, brand, main, sub, condition, shipping):
        x = torch.cat(
            [self.pooled(name), self.pooled(desc), self.brand(brand), self.main(main),
             self.sub(sub), self.condition(condition), shipping],
            dim=1,
        )
        return self.mlp(x).squeeze(1)


class MarketPrices(Task):
    kind = "regression"
    metrics = {"rmsle": "minimize"} | directions_of("mae", "wape")

    def fit(self, train):
        df = train.collect()
        counts = Counter()
        for title, desc in zip(df["title"], df["description"]):
            counts.update(words_of(title))
            counts.update(words_of(desc))
        main, sub = zip(*[(c.split("/")[0], c) for c in df["category"]])
        self.fitted = {
            "words": [w for w, k in sorted(counts.items()) if k >= 3],
            "brands": sorted(df["brand"].fill_null(MISSING).unique().to_list()),
            "main": sorted(set(main)),
            "sub": sorted(set(sub)),
            "mean_log_price": float(np.log1p(df["price"].to_numpy()).mean()),
        }

    def lookup(self, key, shift=1):
        return {value: i + shift for i, value in enumerate(self.fitted[key])}

    def padded(self, texts, table, length):
        out = np.zeros((len(texts), length), dtype=np.int64)
        for i, text in enumerate(texts):
            ids = [table.get(w, 1) for w in words_of(text)][:length]
            out[i, : len(ids)] = ids
        return torch.from_numpy(out)

    def encode(self, rows):
        words = self.lookup("words", shift=2)  # 0 pads, 1 is any other word
        brands, main, sub = self.lookup("brands"), self.lookup("main"), self.lookup("sub")
        condition = rows["condition"].clip(1, 5).to_list()
        batch = {
            "name": self.padded(rows["title"], words, NAME_LEN),
            "desc": self.padded(rows["description"], words, DESC_LEN),
            "brand": torch.tensor([brands.get(b or MISSING, 0) for b in rows["brand"]]),
            "main": torch.tensor([main.get(c.split("/")[0], 0) for c in rows["category"]]),
            "sub": torch.tensor([sub.get(c, 0) for c in rows["category"]]),
            "condition": torch.tensor(condition),
            "shipping": torch.tensor(rows["seller_ships"].to_list()).float().unsqueeze(1),
        }
        if "price" in rows.columns:
            batch[LABEL] = torch.tensor(rows["price"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        f = self.fitted
        return MercariNet(
            len(f["words"]) + 2, len(f["brands"]) + 1, len(f["main"]) + 1, len(f["sub"]) + 1,
            f["mean_log_price"],
        )

    def losses(self, output, batch):
        return (output - torch.log1p(batch[LABEL])) ** 2

    def predict(self, output):
        return torch.expm1(output).clamp(min=0)

    def score(self, predictions, labels):
        error = np.log1p(predictions) - np.log1p(labels)
        return super().score(predictions, labels) | {"rmsle": float(np.sqrt((error**2).mean()))}
