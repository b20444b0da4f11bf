"""The programming language of pasted snippets: tokens by a pattern, masked attention pooling.

data: code_snippets

[data]
label = "language"
features = ["snippet"]
ids = ["row_id"]
meta = ["forum"]
text = ["snippet"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""
import re
from collections import Counter

import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

TOKEN = re.compile(r"\n|[A-Za-z_]+|[0-9]+|:=|[^\sA-Za-z0-9_]")
MAX_TOKENS = 64
PAD_ID, UNK_ID = 0, 1


class AttentionPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, h, mask):
        s = self.score(h).squeeze(-1)
        s = s.masked_fill(~mask, -1e4)
        a = torch.softmax(s, dim=1)
        return (a.unsqueeze(-1) * h).sum(dim=1)


class SnippetNet(nn.Module):
    def __init__(self, vocab_size, n_languages, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, dim, padding_idx=PAD_ID)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.norm = nn.LayerNorm(dim)
        self.pool = AttentionPool(dim)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(dim, n_languages)

    def forward(self, ids):
        mask = ids != PAD_ID
        e = self.emb(ids)
        h = torch.relu(self.conv(e.transpose(1, 2))).transpose(1, 2)
        h = self.norm(e + h)
        return self.fc(self.drop(self.pool(h, mask)))


class SnippetLanguage(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")
    tokens = "ids"

    def fit(self, train):
        df = train.collect()
        seen = Counter(t for s in df["snippet"] for t in TOKEN.findall(s))
        self.fitted = {
            "tokens": sorted(t for t, n in seen.items() if n >= 2),
            "languages": sorted(df["language"].unique().to_list()),
        }

    def encode(self, rows):
        stoi = {t: i + 2 for i, t in enumerate(self.fitted["tokens"])}
        ids = torch.full((rows.height, MAX_TOKENS), PAD_ID)
        for i, snippet in enumerate(rows["snippet"]):
            row = [stoi.get(t, UNK_ID) for t in TOKEN.findall(snippet)][:MAX_TOKENS]
            row = row or [UNK_ID]
            ids[i, : len(row)] = torch.tensor(row)
        batch = {"ids": ids}
        if "language" in rows.columns:
            index = {name: i for i, name in enumerate(self.fitted["languages"])}
            batch[LABEL] = torch.tensor([index[name] for name in rows["language"]])
        return batch

    def build_model(self):
        return SnippetNet(len(self.fitted["tokens"]) + 2, len(self.fitted["languages"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    @property
    def prediction_names(self):
        return self.fitted["languages"]
