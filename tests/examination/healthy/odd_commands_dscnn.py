"""Spoken commands by a depthwise separable network on log mel energies; other speakers judge, bands and moments are masked.

data: spoken_commands

[data]
label = "word"
group = "speaker"
features = ["sound"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 1e-4 }
schedule = { shape = "cosine" }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

RATE, N_FFT, HOP, N_MELS = 4000, 128, 64, 20


def mel_filters():
    def mel(hz):
        return 2595 * np.log10(1 + hz / 700)

    edges = 700 * (10 ** (np.linspace(mel(40), mel(RATE / 2), N_MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, N_FFT // 2 + 1)
    up = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    return torch.tensor(np.maximum(0, np.minimum(up, down)), dtype=torch.float32)


def separable(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_in, 3, padding=1, groups=c_in, bias=False), nn.BatchNorm2d(c_in), nn.ReLU(),
        nn.Conv2d(c_in, c_out, 1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(),
    )


class DSCNN(nn.Module):
    def __init__(self, n_words):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, (5, 3), stride=(2, 1), padding=(2, 1), bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.blocks = nn.Sequential(separable(24, 24), separable(24, 32), separable(32, 32))
        self.pool = nn.AdaptiveAvgPool2d((1, 4))
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(32 * 4, n_words)

    def forward(self, mel):
        x = self.pool(self.blocks(self.stem(mel))).flatten(1)
        return self.fc(self.dropout(x))


class Commands(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "macro_f1")

    def features(self, rows):
        sound = torch.tensor(rows["sound"].to_list(), dtype=torch.float32)
        spectrum = torch.stft(sound, N_FFT, HOP, window=torch.hann_window(N_FFT), return_complex=True).abs() ** 2
        return torch.log(mel_filters() @ spectrum + 1e-3)

    def fit(self, train):
        df = train.collect()
        mel = self.features(df)
        self.fitted = {
            "words": sorted(df["word"].unique().to_list()),
            "mean": mel.mean(dim=(0, 2)).tolist(),
            "std": mel.std(dim=(0, 2)).tolist(),
        }

    def encode(self, rows):
        mean, std = torch.tensor(self.fitted["mean"]), torch.tensor(self.fitted["std"])
        mel = (self.features(rows) - mean[:, None]) / std[:, None]
        batch = {"mel": mel.unsqueeze(1)}
        if "word" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["words"].index(w) for w in rows["word"]])
        return batch

    def augment(self, batch, generator):
        mel = batch["mel"].clone()
        band, moment = torch.arange(mel.shape[2]), torch.arange(mel.shape[3])
        first = torch.randint(0, N_MELS - 3, (len(mel), 1), generator=generator)
        begin = torch.randint(0, mel.shape[3] - 4, (len(mel), 1), generator=generator)
        in_band = (band >= first) & (band < first + 3)
        in_time = (moment >= begin) & (moment < begin + 4)
        mel = mel.masked_fill(in_band[:, None, :, None] | in_time[:, None, None, :], 0.0)
        return {**batch, "mel": mel}

    def build_model(self):
        return DSCNN(len(self.fitted["words"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], label_smoothing=0.05, reduction="none")
