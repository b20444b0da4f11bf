"""fast.ai's collaborative filtering: dot product with biases through a sigmoid range.

data: ratings

[data]
label = "stars"
ids = ["row_id"]

[training]
steps = 800
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 1e-2, weight_decay = 0.1 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class DotProductBias(nn.Module):
    def __init__(self, n_users, n_movies, n_factors=8, y_range=(0.0, 5.5)):
        super().__init__()
        self.user_factors, self.user_bias = nn.Embedding(n_users, n_factors), nn.Embedding(n_users, 1)
        self.movie_factors, self.movie_bias = nn.Embedding(n_movies, n_factors), nn.Embedding(n_movies, 1)
        for e in (self.user_factors, self.user_bias, self.movie_factors, self.movie_bias):
            nn.init.normal_(e.weight, std=0.1)
        self.y_range = y_range

    def forward(self, x):
        users, movies = self.user_factors(x[:, 0]), self.movie_factors(x[:, 1])
        res = (users * movies).sum(dim=1, keepdim=True)
        res = res + self.user_bias(x[:, 0]) + self.movie_bias(x[:, 1])
        low, high = self.y_range
        return torch.sigmoid(res[:, 0]) * (high - low) + low


class Collab(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae")

    def fit(self, train):
        df = train.collect()
        self.users = ["#na#", *sorted(df["user"].unique())]
        self.titles = ["#na#", *sorted(df["title"].unique())]
        self.start = float(((df["stars"] - 2.75) ** 2).mean())

    def state(self):
        return {"users": self.users, "titles": self.titles, "start": self.start}

    def load_state(self, state):
        self.users, self.titles, self.start = state["users"], state["titles"], state["start"]

    def encode(self, rows):
        u, t = ({v: i for i, v in enumerate(vs)} for vs in (self.users, self.titles))
        x = torch.tensor([[u.get(a, 0), t.get(b, 0)] for a, b in rows.select("user", "title").iter_rows()])
        out = {"x": x}
        if "stars" in rows.columns:
            out[LABEL] = torch.tensor(rows["stars"].to_list(), dtype=torch.float32)
        return out

    def build_model(self):
        return DotProductBias(len(self.users), len(self.titles))

    def losses(self, output, batch):
        return (output - batch[LABEL]).pow(2)

    def predict(self, output):
        return output

    def expected_initial_loss(self):
        return self.start
