"""A denoiser of strain gauges: a residual 1D convolution from the cheap sensor to the reference.

data: strain_gauges

[data]
label = "reference"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task


class DnCNN1d(nn.Module):
    """Predicts the noise, and takes it away."""

    def __init__(self, channels=20, depth=3):
        super().__init__()
        body = [nn.Conv1d(1, channels, 7, padding=3), nn.ReLU()]
        for _ in range(depth - 2):
            body += [nn.Conv1d(channels, channels, 7, padding=3), nn.ReLU()]
        body += [nn.Conv1d(channels, 1, 7, padding=3)]
        self.noise = nn.Sequential(*body)

    def forward(self, noisy):
        x = noisy[:, None, :]
        return (x - self.noise(x))[:, 0]


class StrainDenoiser(Task):
    kind = "statistic"
    metrics = {"snr_db": "maximize"}

    def fit(self, train):
        sensor = np.array(train.select("sensor").collect()["sensor"].to_list())
        self.fitted = {"scale": float(sensor.std())}

    def signal(self, column):
        return torch.tensor(column.to_list(), dtype=torch.float32) / self.fitted["scale"]

    def encode(self, rows):
        batch = {"noisy": self.signal(rows["sensor"])}
        if "reference" in rows.columns:
            batch[LABEL] = self.signal(rows["reference"])
        return batch

    def augment(self, batch, generator):
        sign = torch.where(torch.rand(len(batch["noisy"]), 1, generator=generator) < 0.5, -1.0, 1.0)
        return {"noisy": batch["noisy"] * sign, LABEL: batch[LABEL] * sign}

    def build_model(self):
        return DnCNN1d()

    def losses(self, output, batch):
        return F.mse_loss(output, batch[LABEL], reduction="none").mean(dim=1)

    def predict(self, output):
        return output * self.fitted["scale"]

    def statistic(self, output, batch):
        target = batch[LABEL]
        return torch.stack([(output - target).pow(2).mean(1), target.pow(2).mean(1)], dim=1)

    def score(self, predictions, labels):
        error, power = np.average(predictions, axis=0, weights=labels)
        return {"snr_db": float(10 * np.log10(power / error))}
