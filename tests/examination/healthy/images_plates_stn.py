"""Digits on plates that hang askew: a spatial transformer sets them upright before two convolutions read them.

data: house_plates

[data]
label = "digit"
features = ["plate"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, kernel_size=3)
        self.conv2 = nn.Conv2d(12, 24, kernel_size=3)
        self.conv2_drop = nn.Dropout2d(0.2)
        self.fc1 = nn.Linear(24 * 9, 64)
        self.fc2 = nn.Linear(64, 10)
        self.localization = nn.Sequential(
            nn.Conv2d(1, 8, kernel_size=5), nn.MaxPool2d(2, stride=2), nn.ReLU(True),
            nn.Conv2d(8, 10, kernel_size=3), nn.MaxPool2d(2, stride=2), nn.ReLU(True),
        )
        self.fc_loc = nn.Sequential(nn.Linear(10 * 3 * 3, 32), nn.ReLU(True), nn.Linear(32, 6))
        self.fc_loc[2].weight.data.zero_()
        self.fc_loc[2].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))

    def stn(self, x):
        theta = self.fc_loc(self.localization(x).flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.size()), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)

    def forward(self, x):
        x = self.stn(x)
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2, padding=0))
        x = F.adaptive_max_pool2d(x, 3).flatten(1)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.2, training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


class Plates(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        values = train.select("plate").collect()["plate"].explode().to_numpy() / 255.0
        self.fitted = {"mean": float(values.mean()), "std": float(values.std())}

    def encode(self, rows):
        x = torch.tensor(rows["plate"].to_list(), dtype=torch.float32).view(-1, 1, 20, 20) / 255
        batch = {"x": (x - self.fitted["mean"]) / self.fitted["std"]}
        if "digit" in rows.columns:
            batch[LABEL] = torch.tensor(rows["digit"].to_list())
        return batch

    def build_model(self):
        return Net()

    def losses(self, output, batch):
        return F.nll_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.exp()

    def expected_initial_loss(self):
        return math.log(10)
