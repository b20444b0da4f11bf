"""Predictive maintenance: a day of four sensors through one-dimensional convolutions, machines kept apart, failures weighed.

data: compressor_windows

[data]
label = "fails_48h"
time = "window_start"
group = "machine"
features = ["temperature", "pressure", "current", "vibration", "hours_since_service"]
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 1e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SENSORS = ["temperature", "pressure", "current", "vibration"]


class WindowCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(4, 16, kernel_size=5, padding=2)
        self.bn1 = nn.BatchNorm1d(16)
        self.conv2 = nn.Conv1d(16, 32, kernel_size=3, padding=1)
        self.bn2 = nn.BatchNorm1d(32)
        self.pool = nn.MaxPool1d(2)
        self.fc = nn.Linear(32 + 1, 1)

    def forward(self, window, service):
        x = self.pool(torch.relu(self.bn1(self.conv1(window))))
        x = torch.relu(self.bn2(self.conv2(x))).mean(dim=2)
        return self.fc(torch.cat([x, service], dim=1)).squeeze(1)


class FailureWithinTwoDays(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc")

    def fit(self, train):
        df = train.collect()
        self.fitted = {"hours": float(df["hours_since_service"].to_numpy().max())}
        for sensor in SENSORS:
            values = np.array(df[sensor].to_list())
            self.fitted[sensor] = [float(values.mean()), float(values.std())]
        self.fitted["pos_weight"] = float(1 / df["fails_48h"].to_numpy().mean() - 1)

    def encode(self, rows):
        channels = []
        for sensor in SENSORS:
            mean, std = self.fitted[sensor]
            channels.append((np.array(rows[sensor].to_list()) - mean) / std)
        batch = {
            "window": torch.tensor(np.stack(channels, axis=1), dtype=torch.float32),
            "service": torch.tensor(rows["hours_since_service"].to_numpy()[:, None] / self.fitted["hours"], dtype=torch.float32),
        }
        if "fails_48h" in rows.columns:
            batch[LABEL] = torch.tensor(rows["fails_48h"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return WindowCNN()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        weight = torch.where(batch[LABEL] > 0, self.fitted["pos_weight"], 1.0)
        return self.losses(output, batch) * weight
