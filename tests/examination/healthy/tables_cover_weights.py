"""CrossEntropyLoss(weight=...) while training, by inverse root of frequency.

data: cover_types

[data]
label = "cover_type"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class WeightedCover(Task):
    kind = "multiclass"
    metrics = directions_of("balanced_accuracy", "log_loss")

    def fit(self, train):
        df = train.collect()
        self.cols = sorted(set(self.columns.features) - {"soil_type"})
        X = df.select(self.cols).to_numpy()
        self.lo, self.hi = X.min(0).tolist(), X.max(0).tolist()
        counts = np.bincount(df["cover_type"].to_numpy(), minlength=7)
        w = 1 / np.sqrt(counts)
        self.class_weight = (w / w.mean()).tolist()

    def state(self):
        return {"cols": self.cols, "lo": self.lo, "hi": self.hi, "class_weight": self.class_weight}

    def load_state(self, state):
        self.cols, self.lo, self.hi, self.class_weight = state["cols"], state["lo"], state["hi"], state["class_weight"]

    def encode(self, rows):
        lo, hi = np.array(self.lo), np.array(self.hi)
        X = 2 * (rows.select(self.cols).to_numpy() - lo) / (hi - lo) - 1
        soil = np.eye(20)[rows["soil_type"].to_numpy()]
        batch = {"x": torch.tensor(np.hstack([X, soil]), dtype=torch.float)}
        if "cover_type" in rows.columns:
            batch[LABEL] = torch.tensor(rows["cover_type"].to_numpy(), dtype=torch.long)
        return batch

    def build_model(self):
        return Classifier(len(self.cols) + 20, 64, 7)

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], weight=torch.tensor(self.class_weight), reduction="none")

    def predict(self, output):
        return torch.softmax(output, 1)

    def expected_initial_loss(self):
        return math.log(7)


class Classifier(nn.Sequential):
    def __init__(self, d, h, c):
        super().__init__(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, c))

    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x
