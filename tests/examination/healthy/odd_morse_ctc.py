"""Morse code by ear, after Deep Speech: log spectra, strided convolutions, a two-way GRU, CTC.

data: morse_calls

[data]
label = "sent"
features = ["sound", "rate"]
text = ["sent"]
ids = ["row_id"]
meta = ["station"]

[training]
steps = 500
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3, weight_decay = 1e-3 }
schedule = { shape = "cosine", warmup_fraction = 0.05 }
"""
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

RATE = 800  # Hz, to which all recordings are brought
WINDOW, HOP = 32, 16  # 40 and 20 ms
BINS = 13  # from 50 Hz: the carrier lies between 150 and 350 Hz
FRAMES = 224
STRIDE = 4
BLANK = 0
LONGEST = 8
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def resample(sound, rate):
    """To RATE, after a mean over neighbours against aliases."""
    if rate == RATE:
        return sound
    factor = rate // RATE
    usable = len(sound) - len(sound) % factor
    return sound[:usable].reshape(-1, factor).mean(1)


def log_spectrum(sound):
    """[frames, BINS], each recording with mean 0 and deviation 1."""
    sound = np.pad(sound, (0, max(0, WINDOW - len(sound))))
    frames = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW), axis=1)) ** 2
    log = np.log(power[:, 2 : 2 + BINS] + 1e-2)
    return ((log - log.mean()) / (log.std() + 1e-5)).astype(np.float32)


def codes(text):
    return [ALPHABET.index(c) + 1 for c in text.lower() if c in ALPHABET]


class SpeechModel(nn.Module):
    def __init__(self, classes=len(ALPHABET) + 1, hidden=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(BINS, 48, 5, padding=2),
            nn.BatchNorm1d(48),
            nn.ReLU(),
            nn.Conv1d(48, 48, 7, stride=2, padding=3),
            nn.BatchNorm1d(48),
            nn.ReLU(),
            nn.Conv1d(48, 64, 7, stride=STRIDE // 2, padding=3),
            nn.BatchNorm1d(64),
            nn.ReLU(),
        )
        self.rnn = nn.GRU(64, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, spectrum, frames):
        h = self.conv(spectrum.transpose(1, 2)).transpose(1, 2)
        valid = torch.arange(h.shape[1], device=h.device) < (frames // STRIDE)[:, None]
        h, _ = self.rnn(h * valid[..., None])
        return self.fc(h)


def distance(a, b):
    """Edits from a to b."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


class MorseReader(Task):
    kind = "statistic"
    metrics = {"letter_error": "minimize", "ctc": "minimize"}
    serves_predictions = True

    def encode(self, rows):
        spectrum = np.zeros((rows.height, FRAMES, BINS), dtype=np.float32)
        frames = np.zeros(rows.height, dtype=np.int64)
        for i, (sound, rate) in enumerate(zip(rows["sound"], rows["rate"])):
            s = log_spectrum(resample(sound.to_numpy().astype(np.float64), rate))[:FRAMES]
            spectrum[i, : len(s)], frames[i] = s, len(s)
        batch = {"spectrum": torch.from_numpy(spectrum), "frames": torch.from_numpy(frames)}
        if "sent" in rows.columns:
            targets = torch.full((rows.height, LONGEST), BLANK)
            for i, text in enumerate(rows["sent"]):
                spelt = codes(text)[:LONGEST]
                targets[i, : len(spelt)] = torch.tensor(spelt)
            # The length of the sound goes with the letters: CTC needs both.
            batch[LABEL] = torch.cat([targets, torch.from_numpy(frames)[:, None]], 1)
        return batch

    def augment(self, batch, generator):
        noise = torch.randn(batch["spectrum"].shape, generator=generator)
        quiet = torch.rand(len(noise), 1, BINS, generator=generator) < 0.08  # SpecAugment
        return {**batch, "spectrum": (batch["spectrum"] + 0.1 * noise).masked_fill(quiet, 0.0)}

    def build_model(self):
        return SpeechModel()

    @staticmethod
    def lengths(batch):
        return batch[LABEL][:, -1] // STRIDE

    def losses(self, output, batch):
        targets = batch[LABEL][:, :-1]
        spelt = (targets != BLANK).sum(1)
        log_probs = output.log_softmax(dim=-1).transpose(0, 1)
        loss = F.ctc_loss(
            log_probs, targets, self.lengths(batch), spelt,
            blank=BLANK, reduction="none", zero_infinity=True,
        )
        return loss / spelt.clamp(min=1)

    def predict(self, output):
        """The best path, repeats collapsed and blanks removed, padded with blanks."""
        read = torch.full((len(output), 2 * LONGEST), BLANK)
        for i, path in enumerate(output.argmax(-1).tolist()):
            letters = [k for k, _ in groupby(path) if k != BLANK][: 2 * LONGEST]
            read[i, : len(letters)] = torch.tensor(letters, dtype=torch.long)
        return read

    def statistic(self, output, batch):
        targets = batch[LABEL][:, :-1].tolist()
        edits = []
        for read, true in zip(self.predict(output).tolist(), targets):
            true = [c for c in true if c != BLANK]
            edits.append([distance([c for c in read if c != BLANK], true), len(true)])
        edits = torch.tensor(edits, device=output.device).double().view(-1, 2)
        return torch.cat([edits, self.losses(output, batch).double()[:, None]], 1)

    def score(self, predictions, labels):
        edits, letters, loss = predictions.T
        wrong = float(edits.sum() / max(letters.sum(), 1))
        return {"letter_error": wrong, "ctc": float(loss.mean())}
