"""Power of a wind farm as a mixture of two normals, for part of it may stand still; the direction is an angle.

data: wind_farm

[data]
label = "power"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

COMPONENTS = 2
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class MDN(nn.Module):
    def __init__(self, d_in=4, width=40):
        super().__init__()
        self.z_h = nn.Sequential(nn.Linear(d_in, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.z_pi = nn.Linear(width, COMPONENTS)
        self.z_mu = nn.Linear(width, COMPONENTS)
        self.z_log_sigma = nn.Linear(width, COMPONENTS)

    def forward(self, x):
        h = self.z_h(x)
        log_pi = torch.log_softmax(self.z_pi(h), dim=-1)
        return torch.stack([log_pi, self.z_mu(h), self.z_log_sigma(h).clamp(-5, 3)], dim=1)  # [B, 3, K]


class WindFarm(Task):
    kind = "statistic"
    metrics = {"nll": "minimize"}

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            name: {"mean": float(df[name].mean()), "std": float(df[name].std())}
            for name in ("wind_speed", "temperature", "power")
        }

    def standardise(self, name, values):
        return (values - self.fitted[name]["mean"]) / self.fitted[name]["std"]

    def encode(self, rows):
        theta = np.deg2rad(rows["wind_direction"].to_numpy())
        x = np.stack([
            self.standardise("wind_speed", rows["wind_speed"].to_numpy()),
            self.standardise("temperature", rows["temperature"].to_numpy()),
            np.sin(theta),
            np.cos(theta),
        ], axis=1)
        batch = {"x": torch.tensor(x, dtype=torch.float32)}
        if "power" in rows.columns:
            y = self.standardise("power", rows["power"].to_numpy())
            batch[LABEL] = torch.tensor(y, dtype=torch.float32)
        return batch

    def build_model(self):
        return MDN()

    def losses(self, output, batch):
        log_pi, mu, log_sigma = output.unbind(dim=1)
        z = (batch[LABEL][:, None] - mu) * torch.exp(-log_sigma)
        log_normal = -0.5 * z**2 - log_sigma - LOG_SQRT_2PI
        return -torch.logsumexp(log_pi + log_normal, dim=-1)

    def predict(self, output):
        log_pi, mu, _ = output.unbind(dim=1)
        mean = (log_pi.exp() * mu).sum(dim=-1)
        return mean * self.fitted["power"]["std"] + self.fitted["power"]["mean"]

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"nll": float(np.average(predictions.reshape(-1), weights=labels))}
