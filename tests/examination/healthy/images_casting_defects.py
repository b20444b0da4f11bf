"""Defects of cast parts: conv, batch norm and pooling three times, SGD with momentum and steps, weights of classes.

data: castings

[data]
label = "defect"
ids = ["row_id"]

[training]
steps = 900
global_batch_size = 64
micro_batch_size = 32
optimizer = { name = "sgd", learning_rate = 0.02, weight_decay = 5e-4 }
schedule = { shape = "step", milestones = [0.6, 0.85] }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CLASSES = ["chipped", "crack", "holes", "ok"]


def block(c_in, c_out):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True), nn.MaxPool2d(2))


class DefectCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(block(1, 16), block(16, 32), block(32, 48))
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(48 * 4 * 4, 64), nn.ReLU(inplace=True), nn.Dropout(0.4), nn.Linear(64, len(CLASSES)))

    def forward(self, photo):
        return self.classifier(self.features(photo))


class CastingDefects(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy")

    def fit(self, train):
        df = train.collect()
        pixels = np.array(df["photo"].to_list(), dtype=np.float32) / 255
        count = [int((df["defect"] == c).sum()) for c in CLASSES]
        self.fitted = {
            "mean": float(pixels.mean()),
            "std": float(pixels.std()),
            "class_weight": [len(df) / (len(CLASSES) * n) for n in count],  # sklearn's "balanced"
        }

    def encode(self, rows):
        photo = np.array(rows["photo"].to_list(), dtype=np.float32).reshape(-1, 1, 32, 32) / 255
        batch = {"photo": torch.from_numpy((photo - self.fitted["mean"]) / self.fitted["std"])}
        if "defect" in rows.columns:
            batch[LABEL] = torch.tensor([CLASSES.index(d) for d in rows["defect"]])
        return batch

    def augment(self, batch, generator):
        photo = batch["photo"]
        if torch.rand((), generator=generator) < 0.5:
            photo = photo.flip(-1)
        turns = int(torch.randint(4, (), generator=generator))
        return {**batch, "photo": torch.rot90(photo, turns, dims=(-2, -1))}

    def build_model(self):
        return DefectCNN()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        weight = torch.tensor(self.fitted["class_weight"])
        return nn.functional.cross_entropy(output, batch[LABEL], weight=weight, reduction="none")
