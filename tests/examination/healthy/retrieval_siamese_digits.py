"""Siamese network (the Keras example): two pictures, shared tower, distance to probability.

data: digit_pairs

[data]
label = "same"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, left, right):
        distance = nn.functional.pairwise_distance(self.tower(left), self.tower(right))
        return self.shift - self.scale * distance


class SameDigit(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "accuracy", "log_loss")

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def encode(self, rows):
        side = lambda name: torch.tensor(rows[name].to_list(), dtype=torch.float32).view(-1, 1, 8, 8) / 16.0
        batch = {"left": side("left"), "right": side("right")}
        if "same" in rows.columns:
            batch[LABEL] = torch.tensor(rows["same"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Siamese()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return math.log(2)
