"""Power lost on the lines of a feeder: a graph network in plain torch, dense and padded.

data: low_voltage_feeders

[data]
label = "lost_kw"
features = ["tail", "head", "ohm", "kw"]
ids = ["row_id"]
meta = ["utility"]

[training]
steps = 450
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
schedule = { shape = "cosine" }
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_NODES = 16


class GraphConv(nn.Module):
    """Kipf and Welling: D^-1/2 (A + I) D^-1/2 X W, and what the node itself knows."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.neighbours = nn.Linear(d_in, d_out, bias=False)
        self.own = nn.Linear(d_in, d_out)

    def forward(self, x, a_hat):
        return F.relu(torch.bmm(a_hat, self.neighbours(x)) + self.own(x))


class FeederNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.convs = nn.ModuleList([GraphConv(3, width)])
        self.convs.extend(GraphConv(width, width) for _ in range(3))
        self.out = nn.Sequential(nn.Linear(2 * width, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x, adjacency, real):
        a = adjacency + torch.eye(MAX_NODES, device=x.device) * real[:, :, None]
        d = a.sum(dim=-1).clamp(min=1e-6).rsqrt()
        a_hat = d[:, :, None] * a * d[:, None, :]
        for conv in self.convs:
            x = conv(x, a_hat) * real[:, :, None]
        total = x.sum(dim=1) / MAX_NODES
        largest = x.amax(dim=1)
        return self.out(torch.cat([total, largest], dim=1)).squeeze(1)


class Feeders(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def fit(self, train):
        df = train.select("kw", "ohm", "lost_kw").collect()
        log = df["lost_kw"].log().to_numpy()
        self.fitted = {
            "kw": float(df["kw"].explode().to_numpy().mean()),
            "ohm": float(df["ohm"].explode().to_numpy().mean()),
            "mean": float(log.mean()),
            "std": float(log.std()),
        }

    def encode(self, rows):
        b = rows.height
        x = torch.zeros(b, MAX_NODES, 3)
        adjacency = torch.zeros(b, MAX_NODES, MAX_NODES)
        real = torch.zeros(b, MAX_NODES)
        for g, row in enumerate(rows.iter_rows(named=True)):
            n = len(row["kw"])
            real[g, :n] = 1
            x[g, :n, 0] = torch.tensor(row["kw"]) / self.fitted["kw"]
            x[g, 0, 1] = 1  # the transformer
            for tail, head, ohm in zip(row["tail"], row["head"], row["ohm"], strict=True):
                adjacency[g, tail, head] = 1
                adjacency[g, head, tail] = 1
                x[g, head, 2] = ohm / self.fitted["ohm"]
        batch = {"x": x, "adjacency": adjacency, "real": real}
        if "lost_kw" in rows.columns:
            batch[LABEL] = torch.tensor(rows["lost_kw"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return FeederNet()

    def losses(self, output, batch):
        target = (batch[LABEL].log() - self.fitted["mean"]) / self.fitted["std"]
        return F.mse_loss(output, target, reduction="none")

    def predict(self, output):
        return (output * self.fitted["std"] + self.fitted["mean"]).exp()
