"""Pitch of a sung note from raw samples, CREPE in small: a bin per third of a semitone, a Gaussian
blur as the target, binary cross entropies, the answer a weighted mean of cents around the highest
bin.

data: sung_notes

[data]
label = "hertz"
features = ["pcm"]
group = "singer"
meta = ["microphone"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

CENTS = 33.3
BINS = 120
LOWEST = 75.0  # Hz of bin 0
BLUR = 25.0


def to_cents(hertz):
    return 1200 * torch.log2(hertz / LOWEST)


class Crepe(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [], 1
        for width, kernel, stride in [(48, 64, 4), (24, 16, 1), (24, 16, 1), (32, 16, 1)]:
            layers += [
                nn.Conv1d(channels, width, kernel, stride, padding=kernel // 2),
                nn.ReLU(),
                nn.BatchNorm1d(width),
                nn.MaxPool1d(2),
            ]
            channels = width
        self.net = nn.Sequential(*layers, nn.Dropout(0.15), nn.Flatten())
        self.classifier = nn.LazyLinear(BINS)
        with torch.no_grad():
            self.eval()
            self(torch.zeros(2, 512))
            self.train()
            self.classifier.bias.fill_(-3.5)  # two bins or three of a hundred and twenty are lit

    def forward(self, wave):
        return self.classifier(self.net(wave.unsqueeze(1)))


class Pitch(Task):
    kind = "regression"
    metrics = {"raw_pitch_accuracy": "maximize", "cents_error": "minimize"}

    def encode(self, rows):
        wave = np.stack([np.frombuffer(b, dtype="<i2") for b in rows["pcm"]]).astype(np.float32)
        # each frame by itself: nothing to learn, loudness says nothing about pitch
        wave = wave - wave.mean(axis=1, keepdims=True)
        wave = wave / np.clip(wave.std(axis=1, keepdims=True), 1e-8, None)
        batch = {"wave": torch.from_numpy(wave)}
        if "hertz" in rows.columns:
            batch[LABEL] = torch.tensor(rows["hertz"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        sign = torch.randint(0, 2, (len(batch["wave"]), 1), generator=generator) * 2.0 - 1
        return {**batch, "wave": batch["wave"] * sign}

    def build_model(self):
        return Crepe()

    def grid(self, like):
        return torch.arange(BINS, device=like.device) * CENTS

    def losses(self, output, batch):
        away = self.grid(output)[None] - to_cents(batch[LABEL])[:, None]
        target = torch.exp(-(away**2) / (2 * BLUR**2))
        return F.binary_cross_entropy_with_logits(output, target, reduction="none").mean(1)

    def predict(self, output):
        p = output.sigmoid()
        peak = p.argmax(1, keepdim=True)
        near = (torch.arange(BINS, device=p.device)[None] - peak).abs() <= 3
        p = p * near
        cents = (p * self.grid(output)).sum(1) / p.sum(1)
        return LOWEST * 2 ** (cents / 1200)

    def score(self, predictions, labels):
        off = np.abs(1200 * np.log2(np.ravel(predictions) / labels))
        return {"raw_pitch_accuracy": float((off < 50).mean()), "cents_error": float(off.mean())}
