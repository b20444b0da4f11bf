"""SVD++: stars from biases, factors, and what already stood on the reader's shelf (implicit feedback).

data: book_stars

[data]
label = "stars"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, weight_decay = 0.9 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SVDpp(nn.Module):
    def __init__(self, n_users, n_items, mu, n_factors=4):
        super().__init__()
        self.bu, self.bi = nn.Embedding(n_users, 1), nn.Embedding(n_items, 1)
        self.pu, self.qi = nn.Embedding(n_users, n_factors), nn.Embedding(n_items, n_factors)
        self.yj = nn.EmbeddingBag(n_items, n_factors, mode="sum")
        self.register_buffer("mu", torch.tensor(mu))
        for bias in (self.bu, self.bi):
            nn.init.zeros_(bias.weight)
        for factors in (self.pu, self.qi, self.yj):
            nn.init.normal_(factors.weight, 0, 0.1)

    def forward(self, u, i, shelf, owned):
        implicit = self.yj(shelf, per_sample_weights=owned) / owned.sum(1, keepdim=True).clamp(min=1).sqrt()
        dot = (self.qi(i) * (self.pu(u) + implicit)).sum(1)
        return self.mu + self.bu(u)[:, 0] + self.bi(i)[:, 0] + dot


class BookStars(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae")
    longest = 30
    learned = ("raw2inner_u", "raw2inner_i", "global_mean", "variance")

    def fit(self, train):
        df = train.collect()
        books = set(df["book"]) | set(df["shelf"].explode())
        self.raw2inner_u = {r: k for k, r in enumerate(sorted(df["reader"].unique()), start=1)}
        self.raw2inner_i = {b: k for k, b in enumerate(sorted(books), start=1)}
        self.global_mean = float(df["stars"].mean())
        self.variance = float(df["stars"].var(ddof=0))

    def state(self):
        return {name: getattr(self, name) for name in self.learned}

    def load_state(self, state):
        for name in self.learned:
            setattr(self, name, state[name])

    def encode(self, rows):
        shelf = np.zeros((len(rows), self.longest), dtype=np.int64)
        owned = np.zeros((len(rows), self.longest), dtype=np.float32)
        for k, books in enumerate(rows["shelf"].to_list()):
            known = [self.raw2inner_i[b] for b in books if b in self.raw2inner_i][: self.longest]
            shelf[k, : len(known)], owned[k, : len(known)] = known, 1
        batch = {
            "u": torch.tensor([self.raw2inner_u.get(r, 0) for r in rows["reader"]]),
            "i": torch.tensor([self.raw2inner_i.get(b, 0) for b in rows["book"]]),
            "shelf": torch.from_numpy(shelf),
            "owned": torch.from_numpy(owned),
        }
        if "stars" in rows.columns:
            batch[LABEL] = torch.tensor(rows["stars"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return SVDpp(len(self.raw2inner_u) + 1, len(self.raw2inner_i) + 1, self.global_mean)

    def losses(self, output, batch):
        return (output - batch[LABEL]) ** 2

    def predict(self, output):
        return output.clamp(1, 5)

    def expected_initial_loss(self):
        return self.variance
