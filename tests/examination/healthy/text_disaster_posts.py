"""Is a post about a real disaster (Kaggle's "Getting Started" in NLP): cleaned text and keyword, a
packed bidirectional LSTM, a weight for the rarer class.

data: disaster_posts

[data]
label = "target"
ids = ["row_id"]
text = ["text"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""

import re
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_LEN = 24


def clean(text):
    text = re.sub(r"http\S+", " ", text.lower())
    text = re.sub(r"@\w+", " ", text)
    text = re.sub(r"\d+", " num ", text)
    return re.sub(r"[^a-z ]", " ", text).split()


class BiLSTM(nn.Module):
    def __init__(self, vocab_size, n_keywords, emb=24, hidden=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb, padding_idx=0)
        self.keyword = nn.Embedding(n_keywords, 4)
        self.lstm = nn.LSTM(emb, hidden, bidirectional=True, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(2 * hidden + 4, 1)

    def forward(self, text, length, keyword):
        x = self.dropout(self.embedding(text))
        packed = pack_padded_sequence(x, length.cpu(), batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        x = torch.cat([h[0], h[1], self.keyword(keyword)], dim=1)
        return self.fc(self.dropout(x)).squeeze(1)


class DisasterPosts(Task):
    kind = "binary"
    metrics = directions_of("f1", "roc_auc", "accuracy")

    def fit(self, train):
        df = train.collect()
        count = Counter()
        for text in df["text"]:
            count.update(clean(text))
        n_pos = int(df["target"].sum())
        self.fitted = {
            "vocab": sorted(w for w, c in count.items() if c > 1),
            "keywords": sorted(df["keyword"].drop_nulls().unique()),
            "pos_weight": (df.height - n_pos) / n_pos,
        }

    def encode(self, rows):
        stoi = {w: i + 2 for i, w in enumerate(self.fitted["vocab"])}  # 0 pads, 1 is unknown
        ktoi = {k: i + 1 for i, k in enumerate(self.fitted["keywords"])}
        text = torch.zeros(rows.height, MAX_LEN, dtype=torch.int64)
        length = torch.ones(rows.height, dtype=torch.int64)
        for i, words in enumerate(map(clean, rows["text"])):
            ids = [stoi.get(w, 1) for w in words[:MAX_LEN]] or [1]
            text[i, : len(ids)] = torch.tensor(ids)
            length[i] = len(ids)
        batch = {
            "text": text,
            "length": length,
            "keyword": torch.tensor([ktoi.get(k, 0) for k in rows["keyword"]]),
        }
        if "target" in rows.columns:
            batch[LABEL] = rows["target"].to_torch().float()
        return batch

    def build_model(self):
        return BiLSTM(len(self.fitted["vocab"]) + 2, len(self.fitted["keywords"]) + 1)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        pos_weight = torch.tensor(self.fitted["pos_weight"], device=output.device)
        return F.binary_cross_entropy_with_logits(
            output, batch[LABEL], pos_weight=pos_weight, reduction="none"
        )
