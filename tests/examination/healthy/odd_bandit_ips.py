"""Learning from a log: clicks are weighted by one over the chance that the banner had (IPS).

data: banner_log

[data]
label = "logged"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

BANNERS = 4


class Policy(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 32), nn.Tanh())
        self.choice = nn.Linear(32, BANNERS)
        nn.init.zeros_(self.choice.weight)
        nn.init.zeros_(self.choice.bias)

    def forward(self, visitor):
        return self.choice(self.body(visitor))


class BannerPolicy(Task):
    """The loss is minus the value of the policy: it is below zero, and has no floor of its own."""

    kind = "statistic"
    metrics = {"clicks_per_visit": "maximize"}

    def fit(self, train):
        shown, chance, clicked = np.array(train.select("logged").collect()["logged"].to_list()).T
        self.uniform = float((clicked / chance).mean() / BANNERS)

    def state(self):
        return {"uniform": self.uniform}

    def load_state(self, state):
        self.uniform = state["uniform"]

    def encode(self, rows):
        names = sorted(self.columns.features)
        batch = {"visitor": torch.tensor(rows.select(names).to_numpy(), dtype=torch.float32)}
        if "logged" in rows.columns:
            batch[LABEL] = torch.tensor(rows["logged"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Policy(len(self.columns.features))

    def value(self, output, batch):
        shown, chance, clicked = batch[LABEL].unbind(dim=1)
        ours = output.softmax(dim=1).gather(1, shown.long()[:, None])[:, 0]
        return clicked * ours / chance

    def losses(self, output, batch):
        return -self.value(output, batch)

    def predict(self, output):
        return output.softmax(dim=1)

    def statistic(self, output, batch):
        return self.value(output, batch)

    def score(self, predictions, labels):
        return {"clicks_per_visit": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return -self.uniform
