"""A factorisation machine with linear terms over user, item, hour and device.

data: clicks

[data]
label = "click"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

DEVICES = {"phone": 0, "desk": 1, "tablet": 2}
FIELD_DIMS = [300, 200, 24, 4]


class FeaturesLinear(nn.Module):
    def __init__(self, field_dims):
        super().__init__()
        self.fc = nn.Embedding(sum(field_dims), 1)
        nn.init.zeros_(self.fc.weight)
        self.bias = nn.Parameter(torch.zeros((1,)))
        self.register_buffer("offsets", torch.tensor([0, *np.cumsum(field_dims)[:-1]]))

    def forward(self, x):
        return self.fc(x + self.offsets).sum(dim=1) + self.bias


class FactorizationMachineModel(nn.Module):
    def __init__(self, field_dims, embed_dim=4):
        super().__init__()
        self.linear = FeaturesLinear(field_dims)
        self.embedding = nn.Embedding(sum(field_dims), embed_dim)
        nn.init.normal_(self.embedding.weight, std=0.05)

    def forward(self, fields):
        e = self.embedding(fields + self.linear.offsets)
        square_of_sum = e.sum(dim=1) ** 2
        sum_of_square = (e**2).sum(dim=1)
        pairs = 0.5 * (square_of_sum - sum_of_square).sum(dim=1, keepdim=True)
        return (self.linear(fields) + pairs).squeeze(1)


class ClickFM(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "brier")

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def encode(self, rows):
        device = [DEVICES.get(d, 3) for d in rows["device"]]
        fields = np.column_stack([rows["user_id"].to_numpy() % 300, rows["item_id"].to_numpy() % 200, rows["hour"].to_numpy(), device])
        batch = {"fields": torch.tensor(fields, dtype=torch.int64)}
        if "click" in rows.columns:
            batch[LABEL] = torch.tensor(rows["click"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return FactorizationMachineModel(FIELD_DIMS)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return math.log(2)
