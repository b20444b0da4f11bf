"""Seeds in trays as boxes: a CenterNet in small with a heatmap of centres, sizes and offsets; focal loss as in the paper.

data: seed_trays

[data]
label = "boxes"
features = ["photo"]
ids = ["row_id"]

[training]
steps = 260
global_batch_size = 32
micro_batch_size = 32
optimizer = { name = "adam", learning_rate = 3e-3 }
schedule = { shape = "step", milestones = [0.6, 0.85] }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

SIZE, STRIDE = 32, 2
GRID = SIZE // STRIDE
MAX_OBJS = 5
SCORE_THRESH = 0.35


def conv_bn(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class CenterNet(nn.Module):
    """Maps of 16 by 16: heat (logit), width and height in cells, and where in the cell the centre lies."""

    def __init__(self, ch=16):
        super().__init__()
        self.down1 = nn.Sequential(conv_bn(1, ch // 2), conv_bn(ch // 2, ch, stride=2))
        self.down2 = nn.Sequential(conv_bn(ch, ch, stride=2), conv_bn(ch, ch))
        self.lateral = conv_bn(ch, ch)
        self.hm = nn.Sequential(conv_bn(ch, ch), nn.Conv2d(ch, 1, 1))
        self.wh = nn.Sequential(conv_bn(ch, ch), nn.Conv2d(ch, 2, 1))
        self.reg = nn.Sequential(conv_bn(ch, ch), nn.Conv2d(ch, 2, 1))
        self.hm[-1].bias.data.fill_(-2.19)

    def forward(self, photo):
        c1 = self.down1(photo)
        c2 = F.interpolate(self.down2(c1), scale_factor=2, mode="nearest")
        x = self.lateral(c1 + c2)
        return torch.cat([self.hm(x), self.wh(x), self.reg(x)], dim=1)


def draw_targets(boxes):
    """Boxes [B, M, 4] in pixels → heat [B, G, G], and for each box its cell, size and offset; empty rows are -1."""
    real = boxes[..., 2] > 0
    cx = (boxes[..., 0] + boxes[..., 2] / 2) / STRIDE
    cy = (boxes[..., 1] + boxes[..., 3] / 2) / STRIDE
    col, row = (c.long().clamp(0, GRID - 1) for c in (cx, cy))
    grid = torch.arange(GRID, dtype=boxes.dtype, device=boxes.device)
    dy2 = (grid.view(1, 1, -1, 1) - row[..., None, None]) ** 2
    dx2 = (grid.view(1, 1, 1, -1) - col[..., None, None]) ** 2
    sigma = (boxes[..., 2:].min(dim=-1).values / STRIDE / 3).clamp(min=0.5)[..., None, None]
    bumps = torch.exp(-(dx2 + dy2) / (2 * sigma**2)) * real[..., None, None]
    wh = boxes[..., 2:] / STRIDE
    offset = torch.stack([cx - col, cy - row], dim=-1)
    return bumps.amax(dim=1), row * GRID + col, wh, offset, real


def focal_loss(logit, heat):
    pred = torch.sigmoid(logit).clamp(1e-4, 1 - 1e-4)
    pos = heat.eq(1).float()
    pos_loss = torch.log(pred) * (1 - pred) ** 2 * pos
    neg_loss = torch.log(1 - pred) * pred**2 * (1 - heat) ** 4 * (1 - pos)
    return -(pos_loss + neg_loss).sum(dim=(1, 2)) / pos.sum(dim=(1, 2)).clamp(min=1)


def decode(output):
    """Boxes [B, M, 4] in pixels with their scores [B, M], best first."""
    heat = torch.sigmoid(output[:, :1])
    heat = heat * (F.max_pool2d(heat, 3, stride=1, padding=1) == heat)
    scores, index = heat.flatten(1).topk(MAX_OBJS)
    found = output[:, 1:].flatten(2).gather(2, index[:, None].expand(-1, 4, -1)).transpose(1, 2)
    wh, offset = found[..., :2].clamp(min=0.1), found[..., 2:]
    xs, ys = index % GRID + offset[..., 0], index // GRID + offset[..., 1]
    centre = torch.stack([xs, ys], dim=-1)
    return torch.cat([centre - wh / 2, wh], dim=-1) * STRIDE, scores


def iou(a, b):
    """Of boxes [N, 4] and [M, 4] as x, y, w, h."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum((a[:, :2] + a[:, 2:])[:, None], (b[:, :2] + b[:, 2:])[None])
    both = (high - low).clamp(min=0).prod(dim=-1)
    return both / (a[:, 2:].prod(dim=-1)[:, None] + b[:, 2:].prod(dim=-1)[None] - both)


class Seeds(Task):
    kind = "statistic"
    metrics = {"f1_at_half": "maximize", "count_error": "minimize"}
    serves_predictions = True

    def fit(self, train):
        photos = np.array(train.select("photo").collect()["photo"].to_list(), dtype=np.float32)
        self.fitted = {"mean": float(photos.mean()), "std": float(photos.std())}

    def encode(self, rows):
        photo = np.array(rows["photo"].to_list(), dtype=np.float32).reshape(-1, 1, SIZE, SIZE)
        batch = {"photo": torch.from_numpy((photo - self.fitted["mean"]) / self.fitted["std"]).float()}
        if "boxes" in rows.columns:
            boxes = torch.full((rows.height, MAX_OBJS, 4), -1.0)
            for i, flat in enumerate(rows["boxes"]):
                some = torch.tensor(flat.to_list(), dtype=torch.float32).view(-1, 4)[:MAX_OBJS]
                boxes[i, : len(some)] = some
            batch[LABEL] = boxes
        return batch

    def augment(self, batch, generator):
        photo, boxes = batch["photo"], batch[LABEL]
        flip = torch.rand(len(photo), generator=generator) < 0.5
        photo = torch.where(flip[:, None, None, None], photo.flip(-1), photo)
        mirrored = boxes.clone()
        mirrored[..., 0] = SIZE - 1 - boxes[..., 0] - boxes[..., 2]
        real = boxes[..., 2:3] > 0
        boxes = torch.where(flip[:, None, None] & real, mirrored, boxes)
        gain = 1 + 0.1 * torch.randn(len(photo), 1, 1, 1, generator=generator)
        return {**batch, "photo": photo * gain, LABEL: boxes}

    def build_model(self):
        return CenterNet()

    def losses(self, output, batch):
        heat, index, wh, offset, real = draw_targets(batch[LABEL])
        at = output[:, 1:].flatten(2).gather(2, index[:, None].expand(-1, 4, -1)).transpose(1, 2)
        count = real.sum(dim=1).clamp(min=1)
        size_loss = ((at[..., :2] - wh).abs().sum(dim=-1) * real).sum(dim=1) / count
        offset_loss = ((at[..., 2:] - offset).abs().sum(dim=-1) * real).sum(dim=1) / count
        return focal_loss(output[:, 0], heat) + 0.1 * size_loss + offset_loss

    def predict(self, output):
        boxes, scores = decode(output)
        return torch.cat([boxes, scores[..., None]], dim=-1).flatten(1)

    def statistic(self, output, batch):
        boxes, scores = decode(output)
        rows = []
        for found, score, true in zip(boxes, scores, batch[LABEL]):
            found, true = found[score > SCORE_THRESH], true[true[:, 2] > 0]
            overlap, hits = iou(found, true), 0
            for i in range(len(found)):
                if len(true) and overlap[i].max() >= 0.5:
                    overlap[:, overlap[i].argmax()] = -1.0
                    hits += 1
            rows.append((hits, len(found), len(true)))
        return torch.tensor(rows, dtype=torch.float64)

    def score(self, predictions, labels):
        hits, found, true = (predictions * labels[:, None]).sum(axis=0)
        error = np.average(np.abs(predictions[:, 1] - predictions[:, 2]), weights=labels)
        return {"f1_at_half": float(2 * hits / max(found + true, 1)), "count_error": float(error)}
