"""Coughs on the telephone: MFCCs with numpy, an LSTM over the frames, the rare class weighted.

data: cough_clips

[data]
label = "heard"
features = ["pcm"]
group = "person"
ids = ["row_id"]
meta = ["phone"]

[split]
method = "group"

[training]
steps = 260
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
schedule = { shape = "cosine" }
"""
import numpy as np
import torch
from scipy.fft import dct
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SR = 4000
N_FFT = 256
HOP = 100
N_MELS = 26
N_MFCC = 13


def hz_to_mel(hz):
    return 2595.0 * np.log10(1.0 + hz / 700.0)


def mel_filters():
    points = np.linspace(hz_to_mel(40.0), hz_to_mel(SR / 2), N_MELS + 2)
    hz = 700.0 * (10.0 ** (points / 2595.0) - 1.0)
    bins = np.fft.rfftfreq(N_FFT, 1 / SR)
    bank = np.zeros((N_MELS, len(bins)))
    for m in range(N_MELS):
        rise = (bins - hz[m]) / (hz[m + 1] - hz[m])
        fall = (hz[m + 2] - bins) / (hz[m + 2] - hz[m + 1])
        bank[m] = np.maximum(0, np.minimum(rise, fall))
    return bank


def mfcc(wave):
    starts = range(0, len(wave) - N_FFT + 1, HOP)
    frames = np.stack([wave[s : s + N_FFT] for s in starts]) * np.hanning(N_FFT)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    energy = np.log(power @ mel_filters().T + 1e-6)
    return dct(energy, type=2, axis=1, norm="ortho")[:, :N_MFCC]  # [frames, coefficients]


class CoughLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(N_MFCC, 32, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(64, 1)

    def forward(self, mfcc):
        out, _ = self.lstm(mfcc)
        return self.fc(self.dropout(out.max(dim=1).values)).squeeze(-1)


class CoughDetector(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def fit(self, train):
        df = train.collect()
        features = self.features(df)
        coughs = int((df["heard"] == "cough").sum())
        self.fitted = {
            "mean": features.mean(axis=(0, 1)).tolist(),
            "std": features.std(axis=(0, 1)).tolist(),
            "pos_weight": (df.height - coughs) / max(coughs, 1),
        }

    def features(self, rows):
        waves = [np.frombuffer(b, dtype="<i2").astype(np.float64) / 32768.0 for b in rows["pcm"]]
        return np.stack([mfcc(w) for w in waves])

    def encode(self, rows):
        x = (self.features(rows) - self.fitted["mean"]) / self.fitted["std"]
        batch = {"mfcc": torch.from_numpy(x.astype(np.float32))}
        if "heard" in rows.columns:
            batch[LABEL] = torch.tensor([float(h == "cough") for h in rows["heard"]])
        return batch

    def build_model(self):
        return CoughLSTM()

    def losses(self, output, batch):
        loss = nn.functional.binary_cross_entropy_with_logits
        return loss(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        ratio = torch.tensor(self.fitted["pos_weight"])
        loss = nn.functional.binary_cross_entropy_with_logits
        return loss(output, batch[LABEL], pos_weight=ratio, reduction="none")
