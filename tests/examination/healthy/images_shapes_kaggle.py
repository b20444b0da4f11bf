"""Colour shapes: ToTensor, Normalize(mean, std) per channel, random flip, a VGG of two blocks.

data: coloured_shapes

[data]
label = "shape"
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 1e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CLASSES = ["cross", "disc", "square", "stripe"]


class ShapeDataset:
    def __init__(self, rows, mean, std):
        raw = np.stack([np.asarray(v, dtype=np.uint8) for v in rows["rgb"]]).reshape(-1, 16, 16, 3)
        self.x = torch.from_numpy(raw).permute(0, 3, 1, 2).float().div(255)
        self.x = (self.x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


class Shapes(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")

    def fit(self, train):
        raw = np.stack(train.select("rgb").collect()["rgb"].to_list()).reshape(-1, 3) / 255
        self.mean, self.std = raw.mean(0).tolist(), raw.std(0).tolist()

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        batch = {"x": ShapeDataset(rows, self.mean, self.std).x}
        if "shape" in rows.columns:
            batch[LABEL] = torch.tensor([CLASSES.index(s) for s in rows["shape"]])
        return batch

    def augment(self, batch, generator):
        flip = torch.rand(len(batch["x"]), generator=generator) < 0.5
        x = torch.where(flip[:, None, None, None], batch["x"].flip(-1), batch["x"])
        return {**batch, "x": x}

    def build_model(self):
        return VGG()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(1)

    def expected_initial_loss(self):
        return math.log(len(CLASSES))


class VGG(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )
        self.classifier = nn.Sequential(nn.Linear(32 * 16, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 4))

    def forward(self, x):
        return self.classifier(self.features(x))
