"""Road signs from a car's camera: a small network with batch norm as a LightningModule has it.

Rare signs count more in training, by weights of the classes.

data: road_signs

[data]
label = "sign"
features = ["crop"]
ids = ["row_id"]

[training]
steps = 160
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3, weight_decay = 0.01 }
schedule = { shape = "one_cycle" }
"""

import io

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIDE = 28


def block(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)
    )


class SignNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(block(3, 12), block(12, 24), block(24, 32))
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(32 * 9, classes)

    def forward(self, pixels):
        return self.classifier(self.dropout(self.features(pixels).flatten(1)))


class RoadSigns(Task):
    kind = "multiclass"
    metrics = directions_of("balanced_accuracy", "log_loss", "accuracy")

    def fit(self, train):
        df = train.collect()
        pixels = self.pixels(df)
        counts = df["sign"].value_counts().sort("sign")
        self.fitted = {
            "classes": counts["sign"].to_list(),
            "counts": counts["count"].to_list(),
            "mean": pixels.mean(axis=(0, 1, 2)).tolist(),
            "std": pixels.std(axis=(0, 1, 2)).tolist(),
        }

    @staticmethod
    def pixels(rows):
        """[B, H, W, 3] between 0 and 1."""
        read = [np.asarray(Image.open(io.BytesIO(png)).convert("RGB")) for png in rows["crop"]]
        return np.array(read).reshape(-1, SIDE, SIDE, 3) / 255

    def encode(self, rows):
        scaled = (self.pixels(rows) - self.fitted["mean"]) / self.fitted["std"]
        scaled = scaled.transpose(0, 3, 1, 2)
        batch = {"pixels": torch.tensor(scaled, dtype=torch.float32)}
        if "sign" in rows.columns:
            number = {name: k for k, name in enumerate(self.fitted["classes"])}
            batch[LABEL] = torch.tensor([number[name] for name in rows["sign"]])
        return batch

    def augment(self, batch, generator):
        """Shift pictures by up to two pixels, and change their light."""
        x = batch["pixels"]
        right, down = torch.randint(-2, 3, (2,), generator=generator).tolist()
        x = x.roll((down, right), dims=(2, 3))
        light = 1 + 0.2 * torch.randn(len(x), 1, 1, 1, generator=generator)
        return {**batch, "pixels": x * light}

    def build_model(self):
        return SignNet(len(self.fitted["classes"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        counts = torch.tensor(self.fitted["counts"], dtype=torch.float32, device=output.device)
        weights = counts.sum() / (len(counts) * counts)
        return F.cross_entropy(output, batch[LABEL], weight=weights, reduction="none")
