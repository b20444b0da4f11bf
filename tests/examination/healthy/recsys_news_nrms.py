"""Which of five titles is tapped: NRMS as in Microsoft's recommenders, self-attention over words and over the titles read before.

data: news_impressions

[data]
label = "clicked"
features = ["history", "titles", "categories", "age_hours"]
time = "shown_at"
meta = ["reader"]
ids = ["row_id"]

[split]
period = "week"

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, weight_decay = 0.05, betas = [0.9, 0.98] }
"""
from collections import Counter

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

hparams = {"title_size": 7, "his_size": 6, "npratio": 4, "word_emb_dim": 24, "head_num": 4, "attention_hidden_dim": 24, "dropout": 0.2}


class AttLayer(nn.Module):
    """Soft alignment attention."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.proj = nn.Linear(dim, hidden)
        self.query = nn.Linear(hidden, 1, bias=False)

    def forward(self, x, mask):
        score = self.query(torch.tanh(self.proj(x))).squeeze(-1)
        weights = score.masked_fill(~mask, -1e4).softmax(dim=1)
        return torch.einsum("nl,nld->nd", weights, x)


class Encoder(nn.Module):
    """Self-attention and pooling, for words and for titles."""

    def __init__(self, dim, heads, hidden, dropout):
        super().__init__()
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.pool = AttLayer(dim, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.dropout(x)
        y, _ = self.mha(x, x, x, key_padding_mask=~mask, need_weights=False)
        return self.pool(self.dropout(x + y), mask)


class NRMS(nn.Module):
    def __init__(self, n_words, n_categories, hp):
        super().__init__()
        dim = hp["word_emb_dim"]
        self.embedding = nn.Embedding(n_words, dim, padding_idx=0)
        self.category = nn.Embedding(n_categories, dim)
        with torch.no_grad():
            self.embedding.weight.mul_(0.3)
            self.category.weight.mul_(0.3)
        self.newsencoder = Encoder(dim, hp["head_num"], hp["attention_hidden_dim"], hp["dropout"])
        self.userencoder = Encoder(dim, hp["head_num"], hp["attention_hidden_dim"], hp["dropout"])
        self.prior = nn.Sequential(nn.Linear(dim + 1, 16), nn.ReLU(), nn.Linear(16, 1))

    def titles(self, words):
        n, k, length = words.shape
        flat = words.reshape(n * k, length)
        mask = flat > 0
        mask[:, 0] = True  # a slot without a title has one token to look at, and is masked later
        return self.newsencoder(self.embedding(flat), mask).view(n, k, -1)

    def forward(self, history, titles, categories, age):
        there = history[:, :, 0] > 0
        there[:, 0] = True
        user = self.userencoder(self.titles(history), there)
        news = self.titles(titles) + self.category(categories)
        match = torch.einsum("nd,nkd->nk", user, news)
        return match + self.prior(torch.cat([news, age.unsqueeze(-1)], dim=-1)).squeeze(-1)


class NewsClicks(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "top_2_accuracy")

    def fit(self, train):
        df = train.select("history", "titles", "categories", "age_hours").collect()
        seen = Counter()
        for column in ("history", "titles"):
            for titles in df[column]:
                for title in titles:
                    seen.update(title.lower().split())
        self.word_dict = {w: i for i, w in enumerate(sorted(w for w, n in seen.items() if n >= 3), start=2)}
        self.cat_dict = {c: i for i, c in enumerate(sorted(set(df["categories"].explode())), start=1)}
        self.mean_age = float(df["age_hours"].explode().mean())

    def state(self):
        return {"word_dict": self.word_dict, "cat_dict": self.cat_dict, "mean_age": self.mean_age}

    def load_state(self, state):
        self.word_dict, self.cat_dict, self.mean_age = state["word_dict"], state["cat_dict"], state["mean_age"]

    def indices(self, column, size):
        out = torch.zeros(len(column), size, hparams["title_size"], dtype=torch.long)
        for i, titles in enumerate(column.to_list()):
            for j, title in enumerate(titles[-size:]):
                ids = [self.word_dict.get(w, 1) for w in title.lower().split()][: hparams["title_size"]]
                out[i, j, : len(ids)] = torch.tensor(ids)
        return out

    def encode(self, rows):
        batch = {
            "history": self.indices(rows["history"], hparams["his_size"]),
            "titles": self.indices(rows["titles"], hparams["npratio"] + 1),
            "categories": torch.tensor([[self.cat_dict.get(c, 0) for c in cs] for cs in rows["categories"].to_list()]),
            "age": torch.tensor(rows["age_hours"].to_list(), dtype=torch.float32) / self.mean_age - 1,
        }
        if "clicked" in rows.columns:
            batch[LABEL] = torch.tensor(rows["clicked"].to_list())
        return batch

    def build_model(self):
        return NRMS(len(self.word_dict) + 2, len(self.cat_dict) + 1, hparams)

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")
