"""One object on a belt: is there any, which, and where (pc, class, cx, cy, w, h).

data: belt_photos

[data]
label = "seen"
features = ["photo"]
ids = ["row_id"]
meta = ["line"]

[training]
steps = 420
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 3e-3, weight_decay = 1e-3 }
schedule = { shape = "cosine" }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

H, W = 24, 36
CLASSES = ["bottle", "can", "carton"]


class LocaliseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        )
        self.fc = nn.Sequential(nn.Linear(32 * 6 * 9, 64), nn.ReLU(), nn.Dropout(0.1))
        self.objectness = nn.Linear(64, 1)
        self.kind = nn.Linear(64, len(CLASSES))
        self.box = nn.Linear(64, 4)

    def forward(self, photo):
        h = self.fc(self.backbone(photo))
        box = torch.sigmoid(self.box(h))
        return torch.cat([self.objectness(h), self.kind(h), box], dim=1)


def corners(box):
    cx, cy, w, h = box.unbind(-1)
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def iou(a, b):
    ax1, ay1, ax2, ay2 = corners(a)
    bx1, by1, bx2, by2 = corners(b)
    w = (torch.min(ax2, bx2) - torch.max(ax1, bx1)).clamp(min=0)
    h = (torch.min(ay2, by2) - torch.max(ay1, by1)).clamp(min=0)
    both = w * h
    return both / ((ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - both).clamp(min=1e-6)


class BeltLocaliser(Task):
    kind = "statistic"
    metrics = {"found_right": "maximize", "mean_iou": "maximize"}
    serves_predictions = True

    def fit(self, train):
        photos = train.select("photo").collect()
        x = np.array(photos["photo"].to_list(), dtype=np.float32).reshape(-1, 3)
        self.fitted = {"mean": x.mean(axis=0).tolist(), "std": x.std(axis=0).tolist()}

    def encode(self, rows):
        x = np.array(rows["photo"].to_list(), dtype=np.float32).reshape(-1, H, W, 3)
        mean, std = np.float32(self.fitted["mean"]), np.float32(self.fitted["std"])
        x = ((x - mean) / std).transpose(0, 3, 1, 2)
        batch = {"photo": torch.from_numpy(np.ascontiguousarray(x))}
        if "seen" in rows.columns:
            batch[LABEL] = torch.from_numpy(self.targets(rows["seen"]))
        return batch

    def targets(self, seen):
        """pc, class, cx, cy, w, h; the box as shares of the picture."""
        y = np.zeros((len(seen), 6), dtype=np.float32)
        for i, thing in enumerate(seen):
            if thing == "none":
                continue
            kind, *box = thing.split()
            x1, y1, x2, y2 = map(float, box)
            y[i, 0] = 1.0
            y[i, 1] = CLASSES.index(kind)
            y[i, 2:] = [(x1 + x2) / 2 / W, (y1 + y2) / 2 / H, (x2 - x1) / W, (y2 - y1) / H]
        return y

    def augment(self, batch, generator):
        flip = torch.rand(len(batch["photo"]), generator=generator) < 0.5
        photo = torch.where(flip[:, None, None, None], batch["photo"].flip(3), batch["photo"])
        y = batch[LABEL].clone()
        turned = flip & (y[:, 0] > 0)
        y[turned, 2] = 1.0 - y[turned, 2]
        return {**batch, "photo": photo, LABEL: y}

    def build_model(self):
        return LocaliseNet()

    def losses(self, output, batch):
        y = batch[LABEL]
        there = y[:, 0]
        found = F.binary_cross_entropy_with_logits(output[:, 0], there, reduction="none")
        kind = F.cross_entropy(output[:, 1:4], y[:, 1].long(), reduction="none")
        box = F.smooth_l1_loss(output[:, 4:], y[:, 2:], beta=0.1, reduction="none").sum(dim=1)
        return found + there * (kind + 10.0 * box)

    def predict(self, output):
        return torch.cat(
            [output[:, :1].sigmoid(), output[:, 1:4].softmax(dim=1), output[:, 4:]], dim=1
        )

    def statistic(self, output, batch):
        y = batch[LABEL]
        there = y[:, 0] > 0
        said = output[:, 0] > 0
        kind = output[:, 1:4].argmax(dim=1) == y[:, 1].long()
        overlap = iou(output[:, 4:], y[:, 2:])
        right = torch.where(there, said & kind & (overlap > 0.5), ~said)
        return torch.stack([right.double(), overlap.double() * there, there.double()], dim=1)

    def score(self, predictions, labels):
        right, overlap, there = predictions.T
        return {
            "found_right": float(np.average(right, weights=labels)),
            "mean_iou": float((overlap * labels).sum() / max((there * labels).sum(), 1e-9)),
        }
