"""Disturbances of the mains: a 1-D CNN on the wave beside a small MLP on its spectrum.

data: grid_disturbances

[data]
label = "disturbance"
features = ["volts", "rated_volts"]
ids = ["row_id"]
meta = ["site"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CLASSES = ["normal", "sag", "swell", "harmonics", "flicker", "transient"]


class TwoBranchNet(nn.Module):
    def __init__(self, n_classes: int, n_bins: int = 81):
        super().__init__()
        self.wave = nn.Sequential(
            nn.Conv1d(1, 16, 9, padding=4),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 24, 7, padding=3),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(24, 32, 5, padding=2),
            nn.ReLU(),
        )
        self.spectrum = nn.Sequential(nn.Linear(n_bins, 32), nn.ReLU(), nn.Dropout(0.1))
        self.classifier = nn.Linear(32 + 32 + 32, n_classes)

    def forward(self, wave):
        h = self.wave(wave.unsqueeze(1))
        bins = torch.fft.rfft(wave, norm="ortho").abs()
        s = self.spectrum(torch.log1p(bins * 10))
        return self.classifier(torch.cat([h.amax(-1), h.mean(-1), s], dim=1))


class GridFaults(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "log_loss", "accuracy")

    def encode(self, rows):
        volts = np.array(rows["volts"].to_list(), dtype=np.float32)
        peak = math.sqrt(2) * rows["rated_volts"].to_numpy().astype(np.float32)
        wave = volts / peak[:, None]  # per unit: what a sag or a swell is defined by
        batch = {"wave": torch.from_numpy(wave)}
        if "disturbance" in rows.columns:
            batch[LABEL] = torch.tensor([CLASSES.index(d) for d in rows["disturbance"]])
        return batch

    def augment(self, batch, generator):
        wave = batch["wave"]
        flip = torch.rand(len(wave), 1, generator=generator) < 0.5
        wave = torch.where(flip, -wave, wave)
        noise = 0.01 * torch.randn(wave.shape, generator=generator)
        return {**batch, "wave": wave + noise}

    def build_model(self):
        return TwoBranchNet(len(CLASSES))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
