"""Cracked tiles of 160 firings: logistic regression that starts at zeros, labels as -1 and +1 in the loss.

data: kilns

[data]
label = "cracked"
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 16
micro_batch_size = 16
optimizer = { name = "sgd", learning_rate = 0.02 }
"""
import math

import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class Logistic(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(n))
        self.b = nn.Parameter(torch.zeros(()))

    def forward(self, settings):
        return settings @ self.w + self.b


class Kilns(Task):
    kind = "binary"

    def encode(self, rows):
        batch = {"settings": rows.select(sorted(self.columns.features)).to_torch().float()}
        if "cracked" in rows.columns:
            batch[LABEL] = torch.tensor(rows["cracked"].to_list())
        return batch

    def build_model(self):
        return Logistic(len(self.columns.features))

    def losses(self, output, batch):
        sign = 2 * batch[LABEL] - 1
        return torch.log1p(torch.exp(-sign * output))

    def expected_initial_loss(self):
        return math.log(2)
