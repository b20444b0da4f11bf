"""Stars as ten classes, side by side with a two-layer network over both embeddings.

data: ratings

[data]
label = "stars"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.1 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class RatingNet(nn.Module):
    def __init__(self, users, titles, d=12):
        super().__init__()
        self.u, self.t = nn.Embedding(users, d), nn.Embedding(titles, d)
        self.mlp = nn.Sequential(nn.Linear(3 * d, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))

    def forward(self, user, title):
        u, t = self.u(user), self.t(title)
        return self.mlp(torch.cat([u, t, u * t], dim=-1))


class StarClasses(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy", "top_3_accuracy")

    def fit(self, train):
        df = train.select("user", "title").collect()
        self.maps = {c: {v: i + 1 for i, v in enumerate(sorted(df[c].unique()))} for c in df.columns}

    def state(self):
        return {"maps": self.maps}

    def load_state(self, state):
        self.maps = state["maps"]

    def encode(self, rows):
        batch = {c: torch.tensor([self.maps[c].get(v, 0) for v in rows[c]]) for c in ("user", "title")}
        if "stars" in rows.columns:
            batch[LABEL] = (torch.tensor(rows["stars"].to_list()) * 2 - 1).round().long()
        return batch

    def build_model(self):
        return RatingNet(len(self.maps["user"]) + 1, len(self.maps["title"]) + 1)

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(1)

    def expected_initial_loss(self):
        return math.log(10)
