"""Exercises from a sensor at the wrist: 1-D convolutions over windows of six channels, athletes kept whole.

data: gym_windows

[data]
label = "exercise"
group = "athlete"
meta = ["session"]
ids = ["row_id"]

[split]
salt = "32"

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.02 }
averaging = { decay = 0.95 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CHANNELS = ["acc_x", "acc_y", "acc_z", "gyr_x", "gyr_y", "gyr_z"]


class ConvBlock(nn.Module):
    def __init__(self, c_in, c_out, kernel):
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, kernel, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm1d(c_out)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


class WristCNN(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.blocks = nn.Sequential(ConvBlock(6, 24, 7), nn.MaxPool1d(2), ConvBlock(24, 32, 5), nn.MaxPool1d(2), ConvBlock(32, 32, 3))
        self.gap = nn.AdaptiveAvgPool1d(1)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(32, n_classes)

    def forward(self, window):
        x = self.gap(self.blocks(window)).squeeze(-1)
        return self.out(self.drop(x))


class Exercises(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")

    def windows(self, rows):
        """[B, 64, 6]: time first, as the sensor writes it."""
        return np.stack([np.array(rows[c].to_list(), dtype=np.float32) for c in CHANNELS], axis=-1)

    def fit(self, train):
        df = train.collect()
        x = self.windows(df)
        self.fitted = {
            "classes": sorted(set(df["exercise"].to_list())),
            "mean": x.mean(axis=(0, 1)).tolist(),
            "std": x.std(axis=(0, 1)).tolist(),
        }

    def encode(self, rows):
        x = self.windows(rows)
        x = (x - np.float32(self.fitted["mean"])) / np.float32(self.fitted["std"])
        batch = {"window": torch.from_numpy(x).permute(0, 2, 1).contiguous()}
        if "exercise" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["classes"].index(e) for e in rows["exercise"]])
        return batch

    def augment(self, batch, generator):
        x = batch["window"]
        scale = 1 + 0.15 * torch.randn(x.shape[0], x.shape[1], 1, generator=generator)
        jitter = 0.05 * torch.randn(x.shape, generator=generator)
        return {**batch, "window": x * scale + jitter}

    def build_model(self):
        return WristCNN(len(self.fitted["classes"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")
