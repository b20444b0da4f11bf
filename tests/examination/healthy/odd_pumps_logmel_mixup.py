"""Pumps by their sound: log-mel inside the model (torch.stft, a mel bank as buffer), noise and mixup as pairs of labels, mixed again in the loss.

data: pump_sounds

[data]
label = "state"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 2e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SR, N_FFT, HOP, N_MELS = 5000, 128, 64, 20


def mel_filters():
    to_mel = lambda hz: 2595 * math.log10(1 + hz / 700)
    points = np.linspace(to_mel(20), to_mel(SR / 2), N_MELS + 2)
    hz = 700 * (10 ** (points / 2595) - 1)
    bins = np.fft.rfftfreq(N_FFT, 1 / SR)
    lower, centre, upper = hz[:-2, None], hz[1:-1, None], hz[2:, None]
    up, down = (bins - lower) / (centre - lower), (upper - bins) / (upper - centre)
    return torch.tensor(np.maximum(0, np.minimum(up, down)) + 1e-6, dtype=torch.float32)


class LogMel(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)
        self.register_buffer("fbank", mel_filters())

    def forward(self, wave):
        spec = torch.stft(wave, N_FFT, HOP, window=self.window, return_complex=True).abs().pow(2)
        return (self.fbank @ spec).clamp_min(1e-6).log().unsqueeze(1)


class SoundNet(nn.Module):
    def __init__(self, n_states):
        super().__init__()
        self.frontend = LogMel()
        self.bn0 = nn.BatchNorm1d(N_MELS)
        c = 24
        self.convs = nn.Sequential(
            nn.Conv2d(1, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.AvgPool2d(2),
            nn.Conv2d(c, 2 * c, 3, padding=1), nn.BatchNorm2d(2 * c), nn.ReLU(),
        )
        self.fc = nn.Linear(2 * c * 10, n_states)

    def forward(self, wave):
        x = self.frontend(wave)
        x = self.bn0(x.squeeze(1)).unsqueeze(1)
        x = self.convs(x)
        x = x.mean(3) + x.amax(3)  # over time, as in PANNs
        return self.fc(x.flatten(1))


class PumpStates(Task):
    kind = "multiclass"
    metrics = directions_of("balanced_accuracy", "accuracy", "log_loss")

    def fit(self, train):
        self.fitted = {"states": sorted(set(train.collect()["state"]))}

    def encode(self, rows):
        wave = torch.tensor(np.stack(rows["wave"].to_list()), dtype=torch.float32)
        batch = {"wave": wave - wave.mean(1, keepdim=True)}
        if "state" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["states"].index(s) for s in rows["state"]])
        return batch

    def augment(self, batch, generator):
        wave, y = batch["wave"], batch[LABEL]
        n = len(wave)
        wave = wave + 0.05 * torch.rand(n, 1, generator=generator) * torch.randn(wave.shape, generator=generator)
        wave = torch.roll(wave, int(torch.randint(1024, (1,), generator=generator)), dims=1)
        order = torch.randperm(n, generator=generator)
        lam = 0.8 + 0.2 * torch.rand(n, generator=generator)
        mixed = lam[:, None] * wave + (1 - lam[:, None]) * wave[order]
        return {"wave": mixed, LABEL: torch.stack([y.float(), y[order].float(), lam], dim=1)}

    def build_model(self):
        return SoundNet(len(self.fitted["states"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        if batch[LABEL].ndim == 1:  # not augmented
            return self.losses(output, batch)
        a, b, lam = batch[LABEL].unbind(1)
        ce = lambda target: nn.functional.cross_entropy(output, target.long(), reduction="none")
        return lam * ce(a) + (1 - lam) * ce(b)
