"""Caser: the last places as a picture, read by horizontal and vertical convolutions; padding at the left is place 0.

data: place_visits

[data]
label = "next_place"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 4e-3, weight_decay = 0.02 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

LENGTH = 8


class Caser(nn.Module):
    def __init__(self, n_items, dim=24, n_h=12, n_v=4):
        super().__init__()
        self.items = nn.Embedding(n_items + 1, dim, padding_idx=0)
        self.horizontal = nn.ModuleList([nn.Conv2d(1, n_h, (h, dim)) for h in (1, 2, 3)])
        self.vertical = nn.Conv2d(1, n_v, (LENGTH, 1))
        self.fc = nn.Linear(3 * n_h + n_v * dim + dim, dim)
        self.drop = nn.Dropout(0.2)
        self.bias = nn.Parameter(torch.zeros(n_items))

    def forward(self, trail):
        picture = self.items(trail)[:, None]  # [B, 1, L, D]
        across = [conv(picture).squeeze(3).relu().amax(dim=2) for conv in self.horizontal]
        down = self.vertical(picture).flatten(1)
        z = torch.cat([*across, down, picture[:, 0, -1]], dim=1)
        z = self.fc(self.drop(z)).relu()
        return z @ self.items.weight[1:].T + self.bias  # the output layer is tied to the items


class NextPlace(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy")

    def fit(self, train):
        df = train.collect()
        seen = set(df["next_place"]) | {p for trail in df["trail"] for p in trail}
        self.fitted = {"places": sorted(seen)}

    def encode(self, rows):
        index = {p: k + 1 for k, p in enumerate(self.fitted["places"])}
        trails = []
        for trail in rows["trail"].to_list():
            known = [index[p] for p in trail if p in index][-LENGTH:]
            trails.append([0] * (LENGTH - len(known)) + known)
        batch = {"trail": torch.tensor(trails)}
        if "next_place" in rows.columns:
            batch[LABEL] = torch.tensor([index[p] - 1 for p in rows["next_place"]])
        return batch

    def build_model(self):
        return Caser(len(self.fitted["places"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")
