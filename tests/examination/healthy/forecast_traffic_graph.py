"""Traffic at eight sensors: a graph convolution over the roads, then the last six readings of each.

data: traffic

[data]
label = "next"
time = "time"
ids = ["row_id"]

[split]
period = "week"

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

ROADS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (2, 6)]


def adjacency():
    a = torch.zeros(8, 8)
    for upstream, downstream in ROADS:
        a[upstream, downstream] = 1
    return a / a.sum(1, keepdim=True).clamp(min=1)


class STGCN(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.register_buffer("a", adjacency())
        self.own = nn.Linear(6, hidden)
        self.near = nn.Linear(6, hidden)
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        nn.init.zeros_(self.out[3].weight)
        nn.init.zeros_(self.out[3].bias)

    def forward(self, readings):
        x = readings.transpose(1, 2)
        h = self.own(x) + self.near(torch.einsum("ij,bjt->bit", self.a, x))
        return readings[:, -1] + self.out(h).squeeze(-1)


class Traffic(Task):
    kind = "statistic"
    metrics = {"mae": "minimize"}

    def fit(self, train):
        df = train.collect()
        x, y = np.array(df["speeds"].to_list()), np.array(df["next"].to_list())
        std = float(x.std())
        change = (y - x[:, -8:]) / std
        self.fitted = {"mean": float(x.mean()), "std": std, "last": float((change**2).mean())}

    def encode(self, rows):
        mean, std = self.fitted["mean"], self.fitted["std"]
        x = torch.tensor(rows["speeds"].to_list(), dtype=torch.float32).view(-1, 6, 8)
        batch = {"readings": (x - mean) / std}
        if "next" in rows.columns:
            batch[LABEL] = (torch.tensor(rows["next"].to_list(), dtype=torch.float32) - mean) / std
        return batch

    def build_model(self):
        return STGCN()

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(1)

    def predict(self, output):
        return output * self.fitted["std"] + self.fitted["mean"]

    def statistic(self, output, batch):
        return ((output - batch[LABEL]).abs().mean(1) * self.fitted["std"]).double()

    def score(self, predictions, labels):
        return {"mae": float(np.average(predictions.ravel(), weights=labels))}

    def expected_initial_loss(self):
        return self.fitted["last"]
