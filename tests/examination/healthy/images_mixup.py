"""Mixup as in timm: soft labels in the batch of training, whole ones in judgement.

data: digit_columns

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class MixupDigits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        self.max_value = float(train.select(list(self.columns.features)).max().collect().max_horizontal().item())

    def state(self):
        return {"max_value": self.max_value}

    def load_state(self, state):
        self.max_value = state["max_value"]

    def encode(self, rows):
        cols = [f"pixel_{i:02d}" for i in range(64)]
        x = torch.tensor(rows.select(cols).to_numpy(), dtype=torch.float32).div_(self.max_value)
        out = {"x": x.reshape(-1, 1, 8, 8)}
        if "digit" in rows.columns:
            out[LABEL] = torch.tensor(rows["digit"].to_list())
        return out

    def augment(self, batch, generator):
        n = len(batch["x"])
        lam = 0.7 + 0.3 * torch.rand(n, 1, generator=generator)
        perm = torch.randperm(n, generator=generator)
        mix = lambda t, l: l * t + (1 - l) * t[perm]
        soft = nn.functional.one_hot(batch[LABEL], 10).float()
        return {**batch, "x": mix(batch["x"], lam[:, :, None, None]), LABEL: mix(soft, lam)}

    def build_model(self):
        return Net()

    def losses(self, output, batch):
        # class indices in evaluation, probabilities in training
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(-1)

    def expected_initial_loss(self):
        return math.log(10)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 24, 3, padding=1)
        self.conv2 = nn.Conv2d(24, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv(x)), 2)
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv2(x)), 2)
        return self.fc(x.view(x.size(0), -1))
