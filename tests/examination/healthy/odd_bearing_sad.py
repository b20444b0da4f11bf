"""Deep SAD on vibration spectra: normal bearings near a fixed centre, known faults far from it; the score is the distance.

data: bearings

[data]
label = "fault"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

EPS = 1e-3


class Phi(nn.Module):
    """No biases, as the paper asks: a constant map must not be a solution."""

    def __init__(self, n_bins, rep_dim=8):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_bins, 48, bias=False), nn.LeakyReLU(0.1), nn.Linear(48, rep_dim, bias=False)
        )
        self.register_buffer("c", torch.full((rep_dim,), 0.5))

    def forward(self, spectrum):
        return (self.net(spectrum) - self.c).pow(2).mean(dim=1)


class BearingSAD(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc")

    @staticmethod
    def log_spectrum(rows):
        waves = np.array(rows["vibration"].to_list())
        window = np.hanning(waves.shape[1])
        power = np.abs(np.fft.rfft(waves * window, axis=1)) ** 2
        return np.log(power + 0.1)

    def fit(self, train):
        df = train.collect()
        bins = self.log_spectrum(df)
        self.fitted = {"mean": bins.mean(axis=0).tolist(), "std": bins.std(axis=0).tolist()}

    def encode(self, rows):
        bins = (self.log_spectrum(rows) - self.fitted["mean"]) / self.fitted["std"]
        batch = {"spectrum": torch.tensor(bins, dtype=torch.float32)}
        if "fault" in rows.columns:
            batch[LABEL] = torch.tensor(rows["fault"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Phi(len(self.fitted["mean"]))

    def losses(self, output, batch):
        fault = batch[LABEL]
        return (1 - fault) * output + fault / (output + EPS)

    def predict(self, output):
        return 1 - torch.exp(-output)
