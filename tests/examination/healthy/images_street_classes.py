"""Semantic segmentation: sky, road and the rare car, class weights while training, 255 is left out.

data: streets

[data]
label = "mask"
features = ["photo"]
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 5e-3 }
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

H, W = 16, 24
CLASSES = ["sky", "road", "car"]
VOID = 255


class FCN(nn.Module):
    """A fully convolutional network whose dilations see most of the view."""

    def __init__(self, n_classes):
        super().__init__()
        layers, channels = [], 3
        for dilation in (1, 2, 4, 1):
            layers += [nn.Conv2d(channels, 20, 3, padding=dilation, dilation=dilation), nn.GroupNorm(4, 20), nn.ReLU()]
            channels = 20
        self.backbone = nn.Sequential(*layers)
        self.classifier = nn.Conv2d(20, n_classes, 1)

    def forward(self, pixels):
        return self.classifier(self.backbone(pixels))  # (N, C, H, W)


class StreetScenes(Task):
    kind = "statistic"
    metrics = {"mean_iou": "maximize", "pixel_accuracy": "maximize"}

    def fit(self, train):
        df = train.collect()
        rgb = torch.tensor(df["photo"].to_list()).view(-1, H * W, 3).float()
        mask = torch.tensor(df["mask"].to_list())
        frequency = torch.stack([(mask == c).float().mean() for c in range(len(CLASSES))])
        weight = 1 / frequency.sqrt()
        self.fitted = {
            "mean": rgb.mean((0, 1)).tolist(),
            "std": rgb.std((0, 1)).tolist(),
            "class_weights": (weight / weight.mean()).tolist(),
        }

    def encode(self, rows):
        rgb = torch.tensor(rows["photo"].to_list()).view(-1, H, W, 3).float()
        pixels = (rgb - torch.tensor(self.fitted["mean"])) / torch.tensor(self.fitted["std"])
        batch = {"pixels": pixels.permute(0, 3, 1, 2).contiguous()}
        if "mask" in rows.columns:
            batch[LABEL] = torch.tensor(rows["mask"].to_list()).view(-1, H, W)
        return batch

    def build_model(self):
        return FCN(len(CLASSES))

    def _per_image(self, output, target, weight=None):
        each = F.cross_entropy(output, target, weight=weight, ignore_index=VOID, reduction="none")
        return each.sum((1, 2)) / (target != VOID).sum((1, 2)).clamp(min=1)

    def losses(self, output, batch):
        return self._per_image(output, batch[LABEL])

    def training_losses(self, output, batch):
        weight = torch.tensor(self.fitted["class_weights"], device=output.device)
        return self._per_image(output, batch[LABEL], weight)

    def predict(self, output):
        return output.argmax(1).flatten(1)

    def statistic(self, output, batch):
        guess, truth = output.argmax(1).flatten(1), batch[LABEL].flatten(1)
        valid = truth != VOID
        counts = []
        for c in range(len(CLASSES)):
            found, there = (guess == c) & valid, truth == c
            counts += [(found & there).sum(1), (found | there).sum(1)]
        return torch.stack(counts + [valid.sum(1)], dim=1).double()

    def score(self, predictions, labels):
        total = (predictions * labels[:, None]).sum(0)
        both, either, valid = total[0:-1:2], total[1:-1:2], total[-1]
        ious = [float(b / e) for b, e in zip(both, either) if e > 0]
        return {"mean_iou": sum(ious) / len(ious), "pixel_accuracy": float(both.sum() / valid)}
