"""Neural collaborative filtering: GMF beside an MLP, joined by a last layer.

data: clicks

[data]
label = "click"
features = ["user_id", "item_id"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class NeuMF(nn.Module):
    def __init__(self, num_users, num_items, mf_dim=4, layers=(32, 16, 8)):
        super().__init__()
        self.mf_user, self.mf_item = nn.Embedding(num_users, mf_dim), nn.Embedding(num_items, mf_dim)
        self.mlp_user, self.mlp_item = nn.Embedding(num_users, layers[0] // 2), nn.Embedding(num_items, layers[0] // 2)
        self.mlp = nn.Sequential(*[m for a, b in zip(layers[:-1], layers[1:]) for m in (nn.Linear(a, b), nn.ReLU())])
        self.final = nn.Linear(layers[-1] + mf_dim, 1)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.1)

    def forward(self, user_id, item_id):
        gmf = self.mf_user(user_id) * self.mf_item(item_id)
        mlp = self.mlp(torch.cat((self.mlp_user(user_id), self.mlp_item(item_id)), dim=1))
        return self.final(torch.cat((gmf, mlp), dim=1)).squeeze(1)


class NCF(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        top = train.select("user_id", "item_id").max().collect()
        self.n_users, self.n_items = top["user_id"].item() + 1, top["item_id"].item() + 1

    def state(self):
        return {"n_users": self.n_users, "n_items": self.n_items}

    def load_state(self, state):
        self.n_users, self.n_items = state["n_users"], state["n_items"]

    def encode(self, rows):
        batch = {
            "user_id": torch.tensor(rows["user_id"].to_list()).clamp(0, self.n_users - 1),
            "item_id": torch.tensor(rows["item_id"].to_list()).clamp(0, self.n_items - 1),
        }
        if "click" in rows.columns:
            batch[LABEL] = torch.tensor(rows["click"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return NeuMF(self.n_users, self.n_items)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)

    def expected_initial_loss(self):
        return math.log(2)
