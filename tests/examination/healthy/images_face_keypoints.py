"""Facial keypoints by heatmaps and a soft argmax; a mirrored face swaps its eyes.

data: faces

[data]
label = "points"
features = ["face"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

SIZE = 24
LEFT_EYE, RIGHT_EYE, MOUTH = range(3)


def soft_argmax(heatmaps):
    """[B, K, H, W] -> [B, K, 2], x and y from -1 to 1."""
    b, k, h, w = heatmaps.shape
    p = heatmaps.flatten(2).softmax(dim=2).view(b, k, h, w)
    xs = torch.linspace(-1, 1, w, device=p.device)
    ys = torch.linspace(-1, 1, h, device=p.device)
    x = (p.sum(dim=2) * xs).sum(dim=-1)
    y = (p.sum(dim=3) * ys).sum(dim=-1)
    return torch.stack((x, y), dim=-1)


class KeypointNet(nn.Module):
    def __init__(self, width=16, keypoints=3):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, width, 5, padding=2), nn.ReLU(),
        )
        self.heatmaps = nn.Conv2d(width, keypoints, 1)

    def forward(self, face):
        return soft_argmax(self.heatmaps(self.trunk(face)) * 4)


class FacialKeypoints(Task):
    kind = "statistic"
    metrics = {"pixels_off": "minimize"}

    def fit(self, train):
        grey = train.select("face").explode("face").collect()["face"].to_numpy()
        self.fitted = {"mean": float(grey.mean()), "std": float(grey.std())}

    def encode(self, rows):
        grey = torch.tensor(rows["face"].to_list(), dtype=torch.float32).view(-1, 1, SIZE, SIZE)
        batch = {"face": (grey - self.fitted["mean"]) / self.fitted["std"]}
        if "points" in rows.columns:
            points = torch.tensor(rows["points"].to_list(), dtype=torch.float32).view(-1, 3, 2)
            batch[LABEL] = points / (SIZE - 1) * 2 - 1
        return batch

    def augment(self, batch, generator):
        mirror = torch.rand(len(batch["face"]), generator=generator) < 0.5
        face = torch.where(mirror[:, None, None, None], batch["face"].flip(-1), batch["face"])
        points = batch[LABEL]
        mirrored = points * torch.tensor([-1.0, 1.0])
        mirrored = mirrored[:, [RIGHT_EYE, LEFT_EYE, MOUTH]]
        return {**batch, "face": face, LABEL: torch.where(mirror[:, None, None], mirrored, points)}

    def build_model(self):
        return KeypointNet()

    def losses(self, output, batch):
        return F.smooth_l1_loss(output, batch[LABEL], beta=0.1, reduction="none").mean(dim=(1, 2))

    def predict(self, output):
        return ((output + 1) / 2 * (SIZE - 1)).flatten(1)

    def statistic(self, output, batch):
        off = (output - batch[LABEL]) / 2 * (SIZE - 1)
        return off.norm(dim=-1).mean(dim=1)

    def score(self, predictions, labels):
        return {"pixels_off": float(np.average(predictions.reshape(-1), weights=labels))}
