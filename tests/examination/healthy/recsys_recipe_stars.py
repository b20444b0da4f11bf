"""Stars for recipes: two embeddings, their product and two biases, squashed into the range of stars, as fast.ai has it.

data: recipe_stars

[data]
label = "stars"
ids = ["row_id"]

[training]
steps = 700
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 5e-3, weight_decay = 0.1 }
schedule = { shape = "one_cycle" }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def sigmoid_range(x, low, high):
    return torch.sigmoid(x) * (high - low) + low


class DotProductBias(nn.Module):
    def __init__(self, n_users, n_items, n_factors=20, y_range=(0.5, 5.5)):
        super().__init__()
        self.user_factors = nn.Embedding(n_users, n_factors)
        self.user_bias = nn.Embedding(n_users, 1)
        self.item_factors = nn.Embedding(n_items, n_factors)
        self.item_bias = nn.Embedding(n_items, 1)
        for table in self.children():
            nn.init.trunc_normal_(table.weight, std=0.05)
        self.y_range = y_range

    def forward(self, x):
        users, items = self.user_factors(x[:, 0]), self.item_factors(x[:, 1])
        res = (users * items).sum(dim=1, keepdim=True)
        res = res + self.user_bias(x[:, 0]) + self.item_bias(x[:, 1])
        return sigmoid_range(res, *self.y_range)


class RecipeStars(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "cooks": ["#na#", *sorted(df["cook"].unique().to_list())],
            "recipes": ["#na#", *sorted(df["recipe"].unique().to_list())],
        }

    def encode(self, rows):
        cook = {c: i for i, c in enumerate(self.fitted["cooks"])}
        recipe = {r: i for i, r in enumerate(self.fitted["recipes"])}
        pairs = [[cook.get(c, 0), recipe.get(r, 0)] for c, r in zip(rows["cook"], rows["recipe"])]
        batch = {"x": torch.tensor(pairs)}
        if "stars" in rows.columns:
            batch[LABEL] = torch.tensor(rows["stars"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return DotProductBias(len(self.fitted["cooks"]), len(self.fitted["recipes"]))

    def losses(self, output, batch):
        return nn.functional.mse_loss(output.squeeze(1), batch[LABEL], reduction="none")
