"""Depth from one picture, the multi-scale paper in small: logarithms of metres, a loss that forgives the scale in part, holes are masked.

data: lamplit_rooms

[data]
label = "depth_m"
features = ["grey"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 16
optimizer = { learning_rate = 4e-3 }
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

H, W = 16, 20
LAMBDA = 0.5


class CoordUNet(nn.Module):
    def __init__(self, c, log_median):
        super().__init__()
        self.enc1 = self.double(3, c)
        self.enc2 = self.double(c, 2 * c)
        self.mid = self.double(2 * c, 2 * c)
        self.dec1 = self.double(2 * c + c, c)
        self.out = nn.Conv2d(c, 1, 1)
        self.out.bias.data.fill_(log_median)
        rows, cols = torch.meshgrid(torch.linspace(-1, 1, H), torch.linspace(-1, 1, W), indexing="ij")
        self.register_buffer("coords", torch.stack([rows, cols])[None])

    @staticmethod
    def double(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GELU(), nn.Conv2d(b, b, 3, padding=1), nn.GELU())

    def forward(self, grey):
        x = torch.cat([grey, self.coords.expand(len(grey), -1, -1, -1)], dim=1)
        e1 = self.enc1(x)
        e2 = self.mid(self.enc2(F.avg_pool2d(e1, 2)))
        up = F.interpolate(e2, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(self.dec1(torch.cat([up, e1], dim=1)))[:, 0]  # log metres


class RoomDepth(Task):
    kind = "statistic"
    metrics = {"abs_rel": "minimize", "delta_1": "maximize"}

    def fit(self, train):
        depth = torch.tensor(train.select("depth_m").collect()["depth_m"].to_list())
        self.fitted = {"log_median": float(depth[depth > 0].log().median())}

    def encode(self, rows):
        grey = torch.tensor(rows["grey"].to_list(), dtype=torch.float32).view(-1, 1, H, W)
        batch = {"grey": (grey / 255.0 - 0.5) / 0.25}
        if "depth_m" in rows.columns:
            batch[LABEL] = torch.tensor(rows["depth_m"].to_list(), dtype=torch.float32).view(-1, H, W)
        return batch

    def augment(self, batch, generator):
        if torch.rand(1, generator=generator) < 0.5:
            return {**batch, "grey": batch["grey"].flip(-1), LABEL: batch[LABEL].flip(-1)}
        return batch

    def build_model(self):
        return CoordUNet(12, self.fitted["log_median"])

    def losses(self, output, batch):
        depth = batch[LABEL]
        valid = (depth > 0).float()
        n = valid.sum((1, 2)).clamp(min=1)
        d = (output - depth.clamp(min=0.1).log()) * valid
        return (d**2).sum((1, 2)) / n - LAMBDA * d.sum((1, 2)) ** 2 / n**2

    def predict(self, output):
        return output.exp().flatten(1)

    def statistic(self, output, batch):
        metres, depth = output.exp(), batch[LABEL]
        valid = (depth > 0).double()
        n = valid.sum((1, 2)).clamp(min=1)
        truth = depth.clamp(min=0.1)
        rel = ((metres - truth).abs() / truth * valid).sum((1, 2)) / n
        near = ((torch.maximum(metres / truth, truth / metres) < 1.25) * valid).sum((1, 2)) / n
        return torch.stack([rel, near], dim=1)

    def score(self, predictions, labels):
        rel, near = (predictions * labels[:, None]).sum(axis=0) / labels.sum()
        return {"abs_rel": float(rel), "delta_1": float(near)}
