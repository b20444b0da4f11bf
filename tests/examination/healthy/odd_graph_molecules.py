"""Small graphs as padded lists: three rounds of messages along the bonds, mean and max over the atoms.

data: molecules

[data]
label = "poisonous"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class GINConv(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, h, adj):
        return self.mlp((1 + self.eps) * h + adj @ h)


class GIN(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(5, dim, padding_idx=0)
        self.convs = nn.ModuleList([GINConv(dim) for _ in range(2)])
        self.out = nn.Linear(2 * dim, 1)

    def forward(self, atoms, adj):
        mask = (atoms > 0).unsqueeze(-1).float()
        h = self.embed(atoms)
        for conv in self.convs:
            h = F.relu(conv(h, adj)) * mask
        mean = h.sum(1) / mask.sum(1).clamp(min=1)
        return self.out(torch.cat([mean, h.max(1).values], 1)).squeeze(1)


class Molecules(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def encode(self, rows):
        batch = {
            "atoms": torch.tensor(rows["atoms"].to_list()) + 1,
            "adj": torch.tensor(rows["bonds"].to_list(), dtype=torch.float32).view(-1, 10, 10),
        }
        if "poisonous" in rows.columns:
            batch[LABEL] = torch.tensor(rows["poisonous"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return GIN()

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return math.log(2)
