"""ArcFace: a margin on the angle in training, scaled cosines in judgement.

data: digit_lists

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class ArcNet(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.PReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.PReLU(), nn.Flatten())
        self.embedding = nn.Linear(128, dim)
        self.weight = nn.Parameter(torch.empty(10, dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, image):
        return F.linear(F.normalize(self.embedding(self.features(image))), F.normalize(self.weight))


class ArcDigits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")
    s, m = 8.0, 0.2

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def encode(self, rows):
        x = torch.tensor(rows["image"].to_list(), dtype=torch.float32)
        batch = {"image": (x / 16 - 0.3).unflatten(1, (1, 8, 8))}
        if "digit" in rows.columns:
            batch[LABEL] = torch.tensor(rows["digit"].to_list())
        return batch

    def build_model(self):
        return ArcNet()

    def losses(self, output, batch):
        return F.cross_entropy(self.s * output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        cosine = output.clamp(-1 + 1e-6, 1 - 1e-6)
        target = F.one_hot(batch[LABEL], 10).bool()
        logits = torch.where(target, torch.cos(torch.acos(cosine) + self.m), cosine)
        return F.cross_entropy(self.s * logits, batch[LABEL], reduction="none")

    def predict(self, output):
        return (self.s * output).softmax(1)

    def expected_initial_loss(self):
        # cosines in 32 dimensions vary by 1/32, the scale makes 8 squared of it: v/2 more
        return math.log(10) + 0.5 * self.s**2 / 32
