"""Litter on beaches: a small SSD, three shapes of anchors, hard negatives three to one.

data: beach_litter

[data]
label = "items"
features = ["picture"]
ids = ["row_id"]
meta = ["drone"]

[training]
steps = 400
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3, weight_decay = 1e-3 }
schedule = { shape = "cosine" }
"""
import io
import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from perennial.engine.task import LABEL, Task

SIDE, STRIDE = 40, 4
CLASSES = 3  # bottle, lid, plank; 0 is the background in what the network answers
MOST = 3  # items in a picture
SIZE = 10.0
RATIOS = (1 / 3, 1.0, 3.0)  # width to height
VARIANCE = torch.tensor([0.1, 0.1, 0.2, 0.2])
KEEP = 6


def make_anchors():
    """[A, 4] as centre and size, cell by cell."""
    anchors = []
    for row in range(SIDE // STRIDE):
        for column in range(SIDE // STRIDE):
            for ratio in RATIOS:
                w, h = SIZE * math.sqrt(ratio), SIZE / math.sqrt(ratio)
                anchors.append([(column + 0.5) * STRIDE, (row + 0.5) * STRIDE, w, h])
    return torch.tensor(anchors)


ANCHORS = make_anchors()


def corners(boxes):
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def centres(boxes):
    return torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)


def iou(a, b):
    """[..., N, M] of boxes by corners [..., N, 4] and [..., M, 4]."""
    a, b = a.unsqueeze(-2), b.unsqueeze(-3)
    sides = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    both = sides.clamp(min=0).prod(-1)
    area = lambda box: (box[..., 2:] - box[..., :2]).prod(-1)
    return both / (area(a) + area(b) - both).clamp(min=1e-6)


def encode_boxes(boxes, anchors):
    """Boxes by corners to offsets from anchors."""
    c = centres(boxes)
    shift = (c[..., :2] - anchors[:, :2]) / anchors[:, 2:]
    grow = (c[..., 2:].clamp(min=0.1) / anchors[:, 2:]).log()
    return torch.cat([shift, grow], -1) / VARIANCE.to(boxes.device)


def decode_boxes(offsets, anchors):
    d = offsets * VARIANCE.to(offsets.device)
    centre = d[..., :2] * anchors[:, 2:] + anchors[:, :2]
    return corners(torch.cat([centre, d[..., 2:].clamp(max=3).exp() * anchors[:, 2:]], -1))


def match(items, anchors):
    """Class and box of each anchor, [B, A] and [B, A, 4]; class 0 where none is near."""
    real = items[..., 0] >= 0
    overlap = iou(corners(anchors), items[..., 1:]).masked_fill(~real[:, None], -1.0)  # [B, A, M]
    best_anchor = overlap.argmax(1)  # an item's best anchor is its own in any case
    for m in range(MOST):
        rows = real[:, m].nonzero().squeeze(1)
        overlap[rows, best_anchor[rows, m]] = overlap[rows, best_anchor[rows, m]].clamp(max=0.9)
        overlap[rows, best_anchor[rows, m], m] = 2.0
    value, index = overlap.max(2)
    box = items[..., 1:].gather(1, index[..., None].expand(-1, -1, 4))
    kind = items[..., 0].gather(1, index).long() + 1
    return torch.where(value >= 0.5, kind, 0), box


class SSD(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        block = lambda i, o: nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)
        )
        self.features = nn.Sequential(
            block(3, 16), nn.MaxPool2d(2), block(16, width), nn.MaxPool2d(2),
            block(width, width), block(width, width), block(width, width),
        )
        self.loc = nn.Conv2d(width, len(RATIOS) * 4, 3, padding=1)
        self.conf = nn.Conv2d(width, len(RATIOS) * (CLASSES + 1), 3, padding=1)

    def forward(self, picture):
        h = self.features(picture)
        per_anchor = lambda x, k: x.permute(0, 2, 3, 1).reshape(len(x), -1, k)
        return torch.cat([per_anchor(self.loc(h), 4), per_anchor(self.conf(h), CLASSES + 1)], -1)


class Litter(Task):
    kind = "statistic"
    metrics = {"f1": "maximize", "precision": "maximize", "recall": "maximize"}
    serves_predictions = True

    def encode(self, rows):
        pixels = np.zeros((rows.height, SIDE, SIDE, 3), dtype=np.float32)
        for i, data in enumerate(rows["picture"]):
            pixels[i] = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) / 255
        batch = {"picture": torch.from_numpy((pixels.transpose(0, 3, 1, 2) - 0.6) / 0.2)}
        if "items" in rows.columns:
            items = torch.full((rows.height, MOST * 5), -1.0)
            for i, found in enumerate(rows["items"].to_list()):
                items[i, : len(found)] = torch.tensor(found)
            batch[LABEL] = items.view(-1, MOST, 5)
        return batch

    def augment(self, batch, generator):
        mirrored = torch.rand(len(batch[LABEL]), generator=generator) < 0.5
        picture, items = batch["picture"], batch[LABEL]
        kind, x0, y0, x1, y1 = items.unbind(-1)
        other = torch.stack([kind, SIDE - x1, y0, SIDE - x0, y1], -1)
        other = torch.where(kind[..., None] >= 0, other, items)
        return {
            **batch,
            "picture": torch.where(mirrored[:, None, None, None], picture.flip(3), picture),
            LABEL: torch.where(mirrored[:, None, None], other, items),
        }

    def build_model(self):
        return SSD()

    def losses(self, output, batch):
        anchors = ANCHORS.to(output.device)
        loc, conf = output[..., :4], output[..., 4:]
        kind, box = match(batch[LABEL], anchors)
        positive = kind > 0
        count = positive.sum(1)
        near = F.smooth_l1_loss(loc, encode_boxes(box, anchors), reduction="none").sum(-1)
        ce = F.cross_entropy(conf.transpose(1, 2), kind, reduction="none")
        mined = ce.detach().masked_fill(positive, 0.0)
        rank = mined.argsort(1, descending=True).argsort(1)
        negative = rank < 3 * count[:, None]
        total = (near * positive).sum(1) + (ce * (positive | negative)).sum(1)
        return total / count.clamp(min=1)

    def detections(self, output):
        """[B, KEEP, 6]: class (-1 for none), score, corners; greedily, over all classes."""
        anchors = ANCHORS.to(output.device)
        boxes = decode_boxes(output[..., :4], anchors)
        score, kind = output[..., 4:].softmax(-1)[..., 1:].max(-1)
        found = []
        for _ in range(KEEP):
            top, at = score.max(1)
            box = boxes.gather(1, at[:, None, None].expand(-1, 1, 4))
            named = torch.where(top > 0.5, kind.gather(1, at[:, None])[:, 0], -1)
            found.append(torch.cat([named[:, None], top[:, None], box[:, 0]], 1))
            score = score.masked_fill(iou(boxes, box)[..., 0] > 0.4, 0.0)
            score = score.scatter(1, at[:, None], 0.0)
        return torch.stack(found, 1)

    def predict(self, output):
        return self.detections(output).flatten(1)

    def statistic(self, output, batch):
        found, items = self.detections(output), batch[LABEL]
        overlap = iou(found[..., 2:], items[..., 1:])
        same = (found[..., :1] == items[:, None, :, 0]) & (found[..., :1] >= 0)
        hit = same & (overlap >= 0.5)
        hits = hit.any(1).sum(1)
        return torch.stack(
            [hits, (found[..., 0] >= 0).sum(1), (items[..., 0] >= 0).sum(1)], 1
        ).double()

    def score(self, predictions, labels):
        hits, said, real = (predictions * labels[:, None]).sum(0)
        return {
            "f1": float(2 * hits / max(said + real, 1)),
            "precision": float(hits / max(said, 1)),
            "recall": float(hits / max(real, 1)),
        }
