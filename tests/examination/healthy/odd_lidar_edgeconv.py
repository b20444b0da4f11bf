"""Objects from a few laser echoes: a dynamic graph CNN (EdgeConv on nearest neighbours), clouds of unequal size are padded.

data: lidar_objects

[data]
label = "object"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

N, k = 28, 6


def knn(x, mask):
    far = torch.cdist(x, x)
    far = far.masked_fill(~mask[:, None, :], 1e6)
    return far.topk(k, dim=-1, largest=False).indices  # (B, N, k), the point itself among them


def gather(x, idx):
    B, _, C = x.shape
    flat = idx.reshape(B, -1, 1).expand(-1, -1, C)
    return x.gather(1, flat).view(B, N, k, C)


class EdgeConv(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * c_in, c_out), nn.LeakyReLU(0.2), nn.Linear(c_out, c_out))

    def forward(self, x, mask):
        neighbours = gather(x, knn(x.detach(), mask))
        centre = x[:, :, None].expand_as(neighbours)
        edges = torch.cat([centre, neighbours - centre], dim=-1)
        return F.leaky_relu(self.mlp(edges).amax(dim=2), 0.2)


class DGCNN(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.conv2 = EdgeConv(3, 24), EdgeConv(24, 32)
        self.fuse = nn.Linear(56, 64)
        self.head = nn.Sequential(nn.Linear(128, 40), nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, classes))

    def forward(self, xyz, mask):
        h1 = self.conv1(xyz, mask)
        h2 = self.conv2(h1, mask)
        h = F.leaky_relu(self.fuse(torch.cat([h1, h2], dim=-1)), 0.2)
        m = mask[..., None]
        top = h.masked_fill(~m, -1e4).amax(dim=1)
        mean = (h * m).sum(dim=1) / m.sum(dim=1)
        return self.head(torch.cat([top, mean], dim=1))


class LidarObjects(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")

    def fit(self, train):
        self.fitted = {"classes": train.select("object").unique().sort("object").collect()["object"].to_list()}

    def encode(self, rows):
        xyz, mask = torch.zeros(rows.height, N, 3), torch.zeros(rows.height, N, dtype=torch.bool)
        for i, flat in enumerate(rows["points"].to_list()):
            p = torch.tensor(flat, dtype=torch.float32).view(-1, 3)[:N]
            xyz[i, : len(p)] = p - p.mean(dim=0)  # metres stay metres: size tells a van from a car
            mask[i, : len(p)] = True
        batch = {"xyz": xyz, "mask": mask}
        if "object" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["classes"].index(o) for o in rows["object"]])
        return batch

    def augment(self, batch, generator):
        xyz = batch["xyz"]
        a = 2 * math.pi * torch.rand(len(xyz), generator=generator)
        c, s, o, i = a.cos(), a.sin(), torch.zeros_like(a), torch.ones_like(a)
        turn = torch.stack([c, -s, o, s, c, o, o, o, i], dim=1).view(-1, 3, 3)  # about the vertical
        noise = 0.02 * torch.randn(xyz.shape, generator=generator)
        return {**batch, "xyz": (xyz @ turn + noise) * batch["mask"][..., None]}

    def build_model(self):
        return DGCNN(len(self.fitted["classes"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], label_smoothing=0.1, reduction="none")
