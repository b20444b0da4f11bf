"""Power of a roof for six hours: TSMixer over power, cloud and warmth, scaled by the roof's own peak, never below zero.

data: solar_roofs

[data]
label = "next_6h"
features = ["seen", "hour"]
time = "last_hour"
meta = ["roof"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

T, C, H = 48, 5, 6  # hours, channels (power, cloud, warmth, sine, cosine), horizon


class MixerBlock(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.norm_t = nn.LayerNorm(C)
        self.time = nn.Linear(T, T)
        self.norm_c = nn.LayerNorm(C)
        self.channel = nn.Sequential(nn.Linear(C, 24), nn.GELU(), nn.Dropout(dropout), nn.Linear(24, C))

    def forward(self, x):  # [N, T, C]
        x = x + F.gelu(self.time(self.norm_t(x).transpose(1, 2))).transpose(1, 2)
        return x + self.channel(self.norm_c(x))


class TSMixer(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.blocks = nn.Sequential(*[MixerBlock() for _ in range(blocks)])
        self.temporal = nn.Linear(T, H)
        self.head = nn.Linear(C, 1)

    def forward(self, x):
        day_before = x[:, 24 : 24 + H, 0]  # the same hours, a day ago
        y = self.temporal(self.blocks(x).transpose(1, 2)).transpose(1, 2)
        return day_before + self.head(y).squeeze(-1)


class SolarRoofs(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"nmae": "minimize", "bias": "minimize"}

    def fit(self, train):
        x = np.array(train.select("seen").collect()["seen"].to_list()).reshape(-1, T, 3)
        warm = x[:, :, 2]
        self.fitted = {"warm_mean": float(warm.mean()), "warm_std": float(warm.std())}

    def encode(self, rows):
        x = np.array(rows["seen"].to_list()).reshape(-1, T, 3)
        peak = np.maximum(x[:, :, 0].max(axis=1, keepdims=True), 1e-2)
        hour = rows["hour"].to_numpy()[:, None] + np.arange(-T + 1, 1)
        angle = 2 * np.pi * (hour % 24) / 24
        warm = (x[:, :, 2] - self.fitted["warm_mean"]) / self.fitted["warm_std"]
        seen = np.stack([x[:, :, 0] / peak, x[:, :, 1], warm, np.sin(angle), np.cos(angle)], axis=2)
        batch = {"x": torch.tensor(seen, dtype=torch.float32)}
        if "next_6h" in rows.columns:
            y = np.array(rows["next_6h"].to_list()) / peak
            batch[LABEL] = torch.tensor(y, dtype=torch.float32)
        return batch

    def build_model(self):
        return TSMixer()

    def losses(self, output, batch):
        return F.smooth_l1_loss(output, batch[LABEL], beta=0.1, reduction="none").mean(1)

    def predict(self, output):
        return output.clamp(min=0)  # as a share of the peak of the last two days

    def statistic(self, output, batch):
        error = self.predict(output) - batch[LABEL]
        return torch.stack([error.abs().mean(1), error.mean(1)], 1).double()

    def score(self, predictions, labels):
        absolute, signed = np.average(predictions, axis=0, weights=labels)
        return {"nmae": float(absolute), "bias": float(abs(signed))}
