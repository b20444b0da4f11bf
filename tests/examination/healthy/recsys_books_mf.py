"""Matrix factorisation with biases around the mean rating (Koren), for readers and books.

data: book_ratings

[data]
label = "rating"
ids = ["row_id"]

[training]
steps = 800
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 1e-2, weight_decay = 0.05 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class BiasedMF(nn.Module):
    def __init__(self, num_users, num_items, mu, factors=6):
        super().__init__()
        self.P, self.Q = nn.Embedding(num_users, factors), nn.Embedding(num_items, factors)
        self.user_bias, self.item_bias = nn.Embedding(num_users, 1), nn.Embedding(num_items, 1)
        self.mu = nn.Parameter(torch.tensor(mu))
        nn.init.normal_(self.P.weight, std=0.1)
        nn.init.normal_(self.Q.weight, std=0.1)
        nn.init.zeros_(self.user_bias.weight)
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, user, item):
        dot = (self.P(user) * self.Q(item)).sum(dim=1)
        return dot + self.user_bias(user).squeeze(1) + self.item_bias(item).squeeze(1) + self.mu


class BookRatings(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae")

    def fit(self, train):
        df = train.collect()
        rating = df["rating"].to_numpy()
        self.fitted = {
            "readers": sorted(df["reader"].unique().to_list()),
            "books": sorted(df["isbn"].unique().to_list()),
            "mu": float(rating.mean()),
            "variance": float(rating.var()),
        }

    def encode(self, rows):
        reader = {r: i + 1 for i, r in enumerate(self.fitted["readers"])}
        book = {b: i + 1 for i, b in enumerate(self.fitted["books"])}
        batch = {
            "user": torch.tensor([reader.get(r, 0) for r in rows["reader"]]),
            "item": torch.tensor([book.get(b, 0) for b in rows["isbn"]]),
        }
        if "rating" in rows.columns:
            batch[LABEL] = torch.tensor(rows["rating"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return BiasedMF(len(self.fitted["readers"]) + 1, len(self.fitted["books"]) + 1, self.fitted["mu"])

    def losses(self, output, batch):
        return (output - batch[LABEL]) ** 2

    def predict(self, output):
        return output.clamp(1, 10)

    def expected_initial_loss(self):
        return self.fitted["variance"]
