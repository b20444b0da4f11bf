"""Three joints of a hand by heat maps: a small hourglass whose target is a Gaussian at each joint (mean squared error), read off at the highest cell.

data: hands

[data]
label = "joints"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

RES, SIGMA, JOINTS = 24, 1.5, 3


class Residual(nn.Module):
    def __init__(self, inp_dim, out_dim):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inp_dim), nn.Conv2d(inp_dim, out_dim // 2, 1)
        self.bn2, self.conv2 = nn.BatchNorm2d(out_dim // 2), nn.Conv2d(out_dim // 2, out_dim, 3, padding=1)
        self.skip = nn.Conv2d(inp_dim, out_dim, 1) if inp_dim != out_dim else nn.Identity()

    def forward(self, x):
        out = self.conv1(F.relu(self.bn1(x)))
        return self.conv2(F.relu(self.bn2(out))) + self.skip(x)


class Hourglass(nn.Module):
    def __init__(self, n, f):
        super().__init__()
        self.up1, self.low1 = Residual(f, f), Residual(f, f)
        self.low2 = Hourglass(n - 1, f) if n > 1 else Residual(f, f)
        self.low3 = Residual(f, f)

    def forward(self, x):
        low = self.low3(self.low2(self.low1(F.max_pool2d(x, 2))))
        return self.up1(x) + F.interpolate(low, scale_factor=2)


class PoseNet(nn.Module):
    def __init__(self, f=24):
        super().__init__()
        self.pre = nn.Conv2d(1, f, 5, padding=2)
        self.hg = Hourglass(3, f)
        self.outs = nn.Conv2d(f, JOINTS, 1)

    def forward(self, hand):
        return self.outs(F.relu(self.hg(self.pre(hand))))


class HandJoints(Task):
    kind = "statistic"
    metrics = {"pck_2px": "maximize", "mse": "minimize"}
    serves_predictions = True
    prediction_names = ("thumb_x", "thumb_y", "middle_x", "middle_y", "wrist_x", "wrist_y")

    def encode(self, rows):
        hand = np.array(rows["hand"].to_list(), dtype="float32").reshape(-1, 1, RES, RES)
        hand = (hand - hand.mean((2, 3), keepdims=True)) / 50
        batch = {"hand": torch.from_numpy(hand)}
        if "joints" in rows.columns:
            batch[LABEL] = torch.tensor(rows["joints"].to_list()).float().view(-1, JOINTS, 2)
        return batch

    def build_model(self):
        return PoseNet()

    @staticmethod
    def heatmaps(joints):
        grid = torch.arange(RES, device=joints.device, dtype=joints.dtype)
        gx = torch.exp(-((grid - joints[..., 0:1]) ** 2) / (2 * SIGMA**2))
        gy = torch.exp(-((grid - joints[..., 1:2]) ** 2) / (2 * SIGMA**2))
        return gy[..., :, None] * gx[..., None, :]

    def losses(self, output, batch):
        return 100 * F.mse_loss(output, self.heatmaps(batch[LABEL]), reduction="none").mean((1, 2, 3))

    def predict(self, output):
        best = output.flatten(2).argmax(2)
        return torch.stack([best % RES, best // RES], dim=2).flatten(1).float()

    def statistic(self, output, batch):
        off = (self.predict(output).view(-1, JOINTS, 2) - batch[LABEL]).norm(dim=2)
        return torch.stack([(off < 2).double().mean(1), self.losses(output, batch).double() / 100], dim=1)

    def score(self, predictions, labels):
        pck, mse = np.average(predictions, axis=0, weights=labels)
        return {"pck_2px": float(pck), "mse": float(mse)}
