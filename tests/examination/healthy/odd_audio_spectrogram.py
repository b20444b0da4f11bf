"""Log spectrograms, masked in time while training, and a two-dimensional convolution.

data: machine_sounds

[data]
label = "kind"
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

KINDS = ["fan", "pump", "valve"]


def log_spectrogram(clips):
    spec = torch.stft(clips, n_fft=64, hop_length=32, window=torch.hann_window(64), return_complex=True)
    return (spec.abs() + 1e-3).log()


class SoundNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d((4, 1)),
        )
        self.classify = nn.Linear(64, 3)

    def forward(self, spec):
        return self.classify(self.conv(spec).flatten(1))


class MachineSounds(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy")

    def fit(self, train):
        df = train.collect()
        spec = log_spectrogram(torch.tensor(df["clip"].to_list()))
        self.mean, self.std = float(spec.mean()), float(spec.std())

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        spec = log_spectrogram(torch.tensor(rows["clip"].to_list(), dtype=torch.float32))
        batch = {"spec": ((spec - self.mean) / self.std).unsqueeze(1)}
        if "kind" in rows.columns:
            batch[LABEL] = torch.tensor([KINDS.index(k) for k in rows["kind"]])
        return batch

    def augment(self, batch, generator):
        spec = batch["spec"].clone()
        frames = spec.shape[-1]
        for one in spec:
            width = int(torch.randint(0, 4, (1,), generator=generator))
            start = int(torch.randint(0, frames - width, (1,), generator=generator))
            one[:, :, start : start + width] = 0
        return {**batch, "spec": spec}

    def build_model(self):
        return SoundNet()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(dim=1)

    def expected_initial_loss(self):
        return math.log(3)
