"""Songs that a listener plays, from implicit feedback (Hu, Koren and Volinsky): a play is a
preference, the number of plays its confidence; factors of listeners and songs.

data: song_plays

[data]
label = "plays"
ids = ["row_id"]
features = ["user", "song"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 1e-2, weight_decay = 0.5 }
"""

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

FACTORS = 8
ALPHA = 0.5


class MatrixFactorization(nn.Module):
    def __init__(self, n_users, n_items, factors=FACTORS):
        super().__init__()
        self.user_factors = nn.Embedding(n_users, factors)
        self.item_factors = nn.Embedding(n_items, factors)
        self.user_bias = nn.Embedding(n_users, 1)
        self.item_bias = nn.Embedding(n_items, 1)
        for table in (self.user_factors, self.item_factors):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, user, item):
        dot = (self.user_factors(user) * self.item_factors(item)).sum(dim=1)
        return dot + self.user_bias(user)[:, 0] + self.item_bias(item)[:, 0]


class ImplicitSongs(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "average_precision")

    def fit(self, train):
        df = train.select("user", "song").collect()
        self.fitted = {name: sorted(df[name].unique().to_list()) for name in ("user", "song")}

    def codes(self, column):
        """0 is anyone or anything that was not there in training."""
        index = {key: k for k, key in enumerate(self.fitted[column.name], start=1)}
        return torch.tensor([index.get(key, 0) for key in column])

    def encode(self, rows):
        batch = {"user": self.codes(rows["user"]), "item": self.codes(rows["song"])}
        if "plays" in rows.columns:
            plays = torch.tensor(rows["plays"].to_list(), dtype=torch.float32)
            batch[LABEL] = (plays > 0).float()
            batch[WEIGHT] = 1 + ALPHA * torch.log1p(plays)
        return batch

    def build_model(self):
        return MatrixFactorization(len(self.fitted["user"]) + 1, len(self.fitted["song"]) + 1)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
