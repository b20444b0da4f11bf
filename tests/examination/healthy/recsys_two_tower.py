"""Users and films in two towers, the batch's other films as negatives (TensorFlow Recommenders' tutorial).

data: viewings

[data]
label = "movie_title"
features = ["user_id", "age", "movie_title"]
text = ["movie_title"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, weight_decay = 0.1 }
strategy = "single"

[resources]
num_processes = 1
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CANDIDATES = 32


class TwoTower(nn.Module):
    def __init__(self, n_users, n_movies, n_genres, dim=8):
        super().__init__()
        self.user, self.movie = nn.Embedding(n_users, dim), nn.Embedding(n_movies, dim)
        self.genre = nn.Embedding(n_genres, dim)
        for table in (self.user, self.movie, self.genre):
            nn.init.normal_(table.weight, std=0.1)
        self.query_dense = nn.Linear(dim + 1, dim)
        self.item_dense = nn.Linear(2 * dim, dim)

    def forward(self, user, age, movie=None, genre=None):
        query = self.query_dense(torch.cat([self.user(user), age[:, None]], 1))
        if movie is None:
            return torch.stack([query, query], 1)
        item = self.item_dense(torch.cat([self.movie(movie), self.genre(genre)], 1))
        return torch.stack([query, item], 1)


class Retrieval(Task):
    kind = "statistic"
    needs_whole_batch = True
    statistics = ("ahead", "tied")
    metrics = directions_of("recall_at_5", "mean_reciprocal_rank")
    scored_together = CANDIDATES
    scoring_rows = 32 * CANDIDATES

    def fit(self, train):
        df = train.collect()
        age = df["age"].to_numpy()
        self.fitted = {
            "users": sorted(df["user_id"].unique().to_list()),
            "movies": sorted(df["movie_title"].unique().to_list()),
            "genres": sorted({title.split()[0] for title in df["movie_title"]}),
            "age": [float(age.mean()), float(age.std())],
        }

    def lookup(self, name, values):
        index = {v: i + 1 for i, v in enumerate(self.fitted[name])}
        return torch.tensor([index.get(v, 0) for v in values])

    def encode(self, rows):
        mean, std = self.fitted["age"]
        batch = {
            "user": self.lookup("users", rows["user_id"]),
            "age": torch.tensor((rows["age"].to_numpy() - mean) / std, dtype=torch.float32),
        }
        if "movie_title" in rows.columns:
            batch["movie"] = self.lookup("movies", rows["movie_title"])
            batch["genre"] = self.lookup("genres", [title.split()[0] for title in rows["movie_title"]])
            batch[LABEL] = torch.zeros(rows.height, dtype=torch.long)
        return batch

    def build_model(self):
        return TwoTower(*(len(self.fitted[k]) + 1 for k in ("users", "movies", "genres")))

    def in_batch(self, output):
        scores = output[:, 0] @ output[:, 1].T
        return F.cross_entropy(scores, torch.arange(len(output)), reduction="none")

    def training_losses(self, output, batch):
        return self.in_batch(output)

    def losses(self, output, batch):
        return torch.cat([self.in_batch(part) for part in output.split(CANDIDATES)])

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        found = []
        for part in output.split(CANDIDATES):
            scores = part[:, 0] @ part[:, 1].T
            own = scores.diagonal().unsqueeze(1)
            found.append(torch.stack([(scores > own).sum(1), (scores == own).sum(1)], 1))
        return torch.cat(found).double()

    def expected_initial_loss(self):
        return math.log(CANDIDATES)
