"""Protein of wheat by near-infrared spectra, a chemometrician's habits: scatter correction, a derivative, few samples.

data: grain_spectra

[data]
label = "protein"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 1.5e-3, weight_decay = 0.3 }
"""
import numpy as np
import torch
import torch.nn as nn
from scipy.signal import savgol_filter

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def snv(x):
    """Standard normal variate: each spectrum by its own mean and deviation."""
    return (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, ddof=1, keepdims=True)


def pretreat(x):
    return savgol_filter(snv(x), window_length=9, polyorder=2, deriv=1, axis=1)


class LatentRegression(nn.Module):
    """Linear as PLS is, with a small curved correction of the latent variables."""

    def __init__(self, wavelengths, latent=12):
        super().__init__()
        self.loadings = nn.Linear(wavelengths, latent, bias=False)
        self.linear = nn.Linear(latent, 1)
        self.curve = nn.Sequential(nn.Linear(latent, 16), nn.Tanh(), nn.Linear(16, 1, bias=False))
        nn.init.zeros_(self.curve[2].weight)

    def forward(self, spectrum):
        t = self.loadings(spectrum)
        return (self.linear(t) + self.curve(t)).squeeze(1)


class GrainProtein(Task):
    kind = "regression"
    metrics = directions_of("rmse", "r2", "mae")

    def spectra(self, rows):
        return pretreat(rows.select(self.wavelengths()).to_numpy())

    def wavelengths(self):
        return sorted((n for n in self.columns.features if n.startswith("nm_")), key=lambda n: int(n[3:]))

    def fit(self, train):
        df = train.collect()
        x = self.spectra(df)
        self.fitted = {
            "centre": x.mean(0).tolist(), "scale": x.std(0).tolist(),
            "y_mean": df["protein"].mean(), "y_sd": df["protein"].std(),
        }

    def encode(self, rows):
        x = (self.spectra(rows) - np.array(self.fitted["centre"])) / np.array(self.fitted["scale"])
        batch = {"spectrum": torch.tensor(x, dtype=torch.float32)}
        if "protein" in rows.columns:
            batch[LABEL] = torch.tensor(rows["protein"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        x = batch["spectrum"]
        return {**batch, "spectrum": x + 0.05 * torch.randn(x.shape, generator=generator)}

    def build_model(self):
        return LatentRegression(len(self.wavelengths()))

    def losses(self, output, batch):
        return (output - (batch[LABEL] - self.fitted["y_mean"]) / self.fitted["y_sd"]) ** 2

    def predict(self, output):
        return output * self.fitted["y_sd"] + self.fitted["y_mean"]
