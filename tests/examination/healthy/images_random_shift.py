"""Digits with random shifts by a pixel and batch normalisation, as in a Keras augmentation tutorial.

data: digit_pngs

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import io
import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(32 * 4, 10)

    def forward(self, x):
        x = self.pool(self.block1(x))
        x = self.pool(self.block2(x))
        return self.fc(x.flatten(1))


class ShiftedDigits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1")

    def fit(self, train):
        pictures = self.pictures(train.collect())
        self.mean, self.std = float(pictures.mean()), float(pictures.std())

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def pictures(self, rows):
        opened = [Image.open(io.BytesIO(raw)).convert("L") for raw in rows[self.picture_column]]
        return np.stack([np.asarray(one.resize((8, 8)), dtype=np.float32) for one in opened]) / 255

    @property
    def picture_column(self):
        return next(iter(self.columns.features))

    def encode(self, rows):
        x = (self.pictures(rows) - self.mean) / self.std
        batch = {"x": torch.from_numpy(x).unsqueeze(1)}
        if "digit" in rows.columns:
            batch[LABEL] = torch.tensor(rows["digit"].to_list())
        return batch

    def augment(self, batch, generator):
        x = F.pad(batch["x"], (1, 1, 1, 1), value=-self.mean / self.std)
        down, right = torch.randint(0, 3, (2, len(x)), generator=generator)
        moved = [one[:, i : i + 8, j : j + 8] for one, i, j in zip(x, down.tolist(), right.tolist())]
        return {**batch, "x": torch.stack(moved)}

    def build_model(self):
        return ConvNet()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(-1)

    def expected_initial_loss(self):
        return math.log(10)
