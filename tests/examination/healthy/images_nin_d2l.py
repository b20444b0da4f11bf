"""d2l's network in network: 1 by 1 convolutions, global average pooling, Xavier.

data: digit_lists

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 350
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def nin_block(in_channels, out_channels, kernel_size, padding):
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding), nn.ReLU(),
        nn.Conv2d(out_channels, out_channels, kernel_size=1), nn.ReLU(),
    )


def init_cnn(module):
    if type(module) in (nn.Linear, nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)


class NiN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nin_block(1, 24, 3, 1), nn.MaxPool2d(2), nin_block(24, 48, 3, 1),
            nn.Conv2d(48, 10, kernel_size=1), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(),
        )
        self.net.apply(init_cnn)

    def forward(self, X):
        return self.net(X)


class NiNDigits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        images = torch.tensor(train.select("image").collect()["image"].to_list()).float()
        self.mu = images.mean().item()
        self.sigma = images.std().item()

    def state(self):
        return {"mu": self.mu, "sigma": self.sigma}

    def load_state(self, state):
        self.mu = state["mu"]
        self.sigma = state["sigma"]

    def encode(self, rows):
        X = torch.tensor(rows["image"].to_list()).float()
        batch = dict(X=((X - self.mu) / self.sigma).reshape((-1, 1, 8, 8)))
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor(rows[self.columns.label].to_list())
        return batch

    def build_model(self):
        return NiN()

    def losses(self, output, batch):
        fn = nn.CrossEntropyLoss(reduction="none")
        return fn(output.reshape((-1, output.shape[-1])), batch[LABEL].reshape((-1,)))

    def predict(self, output):
        return nn.functional.softmax(output, dim=-1)

    def expected_initial_loss(self):
        return math.log(10)
