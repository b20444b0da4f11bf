"""One boat in each radar picture: a box as DETR writes it (centre and size through a sigmoid), L1 plus generalised IoU.

data: boats

[data]
label = "frame"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 1e-3, weight_decay = 1e-4 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

SIDE = 28.0


def box_cxcywh_to_xyxy(x):
    x_c, y_c, w, h = x.unbind(-1)
    return torch.stack([x_c - 0.5 * w, y_c - 0.5 * h, x_c + 0.5 * w, y_c + 0.5 * h], dim=-1)


def paired_giou(a, b):
    area = lambda box: (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
    inter_lt, inter_rb = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, 2:], b[:, 2:])
    inter = (inter_rb - inter_lt).clamp(min=0).prod(1)
    union = area(a) + area(b) - inter
    hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(1)
    iou = inter / union
    return iou, iou - (hull - union) / hull


class BoatDetector(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(16, d, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(d, d, 3, padding=1), nn.ReLU(),
        )
        self.pos = nn.Parameter(torch.randn(49, d) * 0.1)
        self.query = nn.Parameter(torch.randn(1, 1, d) * 0.1)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.bbox_embed = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, scan):
        memory = self.backbone(scan).flatten(2).transpose(1, 2)
        query = self.query.expand(len(scan), -1, -1)
        h, _ = self.attn(query, memory + self.pos, memory + self.pos, need_weights=False)
        return self.bbox_embed(self.norm(query + h)[:, 0]).sigmoid()


class Boats(Task):
    kind = "statistic"
    metrics = {"mean_iou": "maximize", "ap50": "maximize"}
    serves_predictions = True

    def encode(self, rows):
        scan = torch.tensor(rows["scan"].to_list(), dtype=torch.float32).view(-1, 1, 28, 28)
        batch = {"scan": (scan / 255 - 0.3) / 0.2}
        if "frame" in rows.columns:
            batch[LABEL] = torch.tensor(rows["frame"].to_list(), dtype=torch.float32) / SIDE
        return batch

    def augment(self, batch, generator):
        if torch.rand(1, generator=generator).item() > 0.5:
            return batch
        x0, y0, x1, y1 = batch[LABEL].unbind(1)
        return {"scan": batch["scan"].flip(3), LABEL: torch.stack([1 - x1, y0, 1 - x0, y1], 1)}

    def build_model(self):
        return BoatDetector()

    def losses(self, output, batch):
        found = box_cxcywh_to_xyxy(output)
        _, giou = paired_giou(found, batch[LABEL])
        x0, y0, x1, y1 = batch[LABEL].unbind(1)
        target = torch.stack([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], 1)
        return 5 * F.l1_loss(output, target, reduction="none").sum(1) + 2 * (1 - giou)

    def predict(self, output):
        return box_cxcywh_to_xyxy(output) * SIDE

    def statistic(self, output, batch):
        iou, _ = paired_giou(box_cxcywh_to_xyxy(output), batch[LABEL])
        return torch.stack([iou, (iou > 0.5).float()], 1).double()

    def score(self, predictions, labels):
        iou, ap50 = np.average(predictions, axis=0, weights=labels)
        return {"mean_iou": float(iou), "ap50": float(ap50)}
