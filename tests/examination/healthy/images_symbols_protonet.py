"""Five ways, two shots: prototypical networks on drawn symbols, alphabets unseen in training.

data: symbol_episodes

[data]
label = "match"
features = ["support", "query"]
group = "alphabet"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 320
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
schedule = { shape = "cosine" }
"""

import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

WAYS, SHOTS, SIDE = 5, 2, 14


def conv_block(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.ReLU(), nn.MaxPool2d(2)
    )


class ProtoNet(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.encoder = nn.Sequential(conv_block(1, dim), conv_block(dim, dim), nn.Flatten())

    def forward(self, support, query):
        b = len(query)
        z_query = self.encoder(query)  # [b, d]
        z = self.encoder(support.flatten(0, 2)).view(b, WAYS, SHOTS, -1)
        prototypes = z.mean(dim=2)  # [b, WAYS, d]
        distance = (prototypes - z_query[:, None]).pow(2).sum(dim=-1)
        return -distance / math.sqrt(z_query.size(-1))


class Symbols(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def encode(self, rows):
        support = np.array(rows["support"].to_list(), dtype=np.float32)
        query = np.array(rows["query"].to_list(), dtype=np.float32)
        batch = {
            "support": torch.from_numpy(support).view(-1, WAYS, SHOTS, 1, SIDE, SIDE) / 255,
            "query": torch.from_numpy(query).view(-1, 1, SIDE, SIDE) / 255,
        }
        if "match" in rows.columns:
            batch[LABEL] = torch.tensor(rows["match"].to_list())
        return batch

    def augment(self, batch, generator):
        """The order of the five means nothing: deal them anew."""
        support, match = batch["support"], batch[LABEL]
        order = torch.rand(len(support), WAYS, generator=generator).argsort(dim=1)
        support = support[torch.arange(len(support))[:, None], order]
        match = (order == match[:, None]).int().argmax(dim=1)
        return {**batch, "support": support, LABEL: match}

    def build_model(self):
        return ProtoNet()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")
