"""The Kaggle kernel for MNIST: two convolutions with BatchNorm, dropout, small shifts while training.

data: digit_columns

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 2e-3 }
normalization = { batch_norm = "sync" }
"""
import numpy as np
import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.3), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))

    def forward(self, image):
        x = self.features(image)
        x = x.view(x.size(0), -1)
        return self.classifier(x)


class Digits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    @property
    def pixels(self):
        return [f"pixel_{i:02}" for i in range(64)]

    def encode(self, rows):
        x = rows.select(self.pixels).to_numpy().astype(np.float32).reshape(-1, 1, 8, 8) / 16.0
        batch = {"image": torch.from_numpy((x - 0.3) / 0.37)}
        if "digit" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["digit"].to_numpy().copy())
        return batch

    def augment(self, batch, generator):
        image = batch["image"]
        shift = torch.randint(-1, 2, (len(image),), generator=generator)
        moved = torch.stack([torch.roll(one, int(s), dims=2) for one, s in zip(image, shift)])
        return batch | {"image": moved}

    def build_model(self):
        return Net()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")
