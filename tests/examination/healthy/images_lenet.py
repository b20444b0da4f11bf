"""LeNet as in the PyTorch 60-minute blitz, on the small digits padded to 16.

data: digit_lists

[data]
label = "digit"
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
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class LeNet(nn.Module):
    def __init__(self):
        super(LeNet, self).__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 3)
        self.fc1 = nn.Linear(16 * 2 * 2, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, image):
        x = F.max_pool2d(F.relu(self.conv1(image)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class LeNetDigits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        pixels = np.array(train.select("image").collect()["image"].to_list(), dtype=np.float32) / 16
        self.mean, self.std = float(pixels.mean()), float(pixels.std())

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def transform(self, image):
        image = torch.tensor(image, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        return F.pad((image - self.mean) / self.std, (4, 4, 4, 4), value=-self.mean / self.std)

    def encode(self, rows):
        batch = {"image": self.transform(rows["image"].to_list())}
        if "digit" in rows.columns:
            batch[LABEL] = torch.tensor(rows["digit"].to_list())
        return batch

    def build_model(self):
        return LeNet()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return F.softmax(output, dim=1)

    def expected_initial_loss(self):
        return math.log(10)
