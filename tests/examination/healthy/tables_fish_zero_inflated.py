"""Zero-inflated Poisson: whether a group fished at all, and how many it caught if so.

data: anglers

[data]
label = "count"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class ZIP(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.head = nn.Linear(32, 2)
        nn.init.zeros_(self.head.weight)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor([0.0, start]))

    def forward(self, x):
        return self.head(self.body(x))


def zip_nll(output, count):
    zero, rate = output[:, 0], output[:, 1].clamp(max=6).exp()
    at_zero = torch.logaddexp(F.logsigmoid(zero), F.logsigmoid(-zero) - rate)
    above = F.logsigmoid(-zero) + count * rate.log() - rate - torch.lgamma(count + 1)
    return -torch.where(count == 0, at_zero, above)


class FishCounts(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        df = train.collect()
        x = df.select("persons", "child", "camper", "hours").to_numpy()
        y = df["count"].to_numpy()
        start = float(np.log(2 * y.mean()))
        output = torch.tensor([[0.0, start]]).expand(len(y), 2)
        first = zip_nll(output, torch.tensor(y, dtype=torch.float32)).mean().item()
        self.fitted = {"mu": x.mean(0).tolist(), "sigma": x.std(0).tolist(), "start": start, "first": first}

    def encode(self, rows):
        x = rows.select("persons", "child", "camper", "hours").to_numpy()
        x = (x - self.fitted["mu"]) / self.fitted["sigma"]
        batch = {"x": torch.tensor(x, dtype=torch.float32)}
        if "count" in rows.columns:
            batch[LABEL] = torch.tensor(rows["count"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return ZIP(self.fitted["start"])

    def losses(self, output, batch):
        return zip_nll(output, batch[LABEL])

    def predict(self, output):
        return torch.sigmoid(-output[:, 0]) * output[:, 1].clamp(max=6).exp()

    def expected_initial_loss(self):
        return self.fitted["first"]
