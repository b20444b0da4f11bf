"""Random Fourier features: a frozen random projection in buffers, and a ridge on its cosines; jax-like.

data: plant_output

[data]
label = "PE"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 1e-2, weight_decay = 0.01 }
"""
import math
from functools import partial

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

INPUTS = ("AT", "V", "AP", "RH")
N_FEATURES = 256
LENGTH_SCALE = 2.0


def init_features(seed, d, n, length_scale):
    key = torch.Generator().manual_seed(seed)
    omega = torch.randn(d, n, generator=key) / length_scale
    phase = torch.rand(n, generator=key) * 2 * math.pi
    return {"omega": omega, "phase": phase}


def apply_features(params, x):
    return math.sqrt(2.0) * torch.cos(x @ params["omega"] + params["phase"])


def standardize(x, mean, std):
    return (x - mean) / std


class KernelRidge(nn.Module):
    def __init__(self, params):
        super().__init__()
        for name, value in params.items():
            self.register_buffer(name, value)
        self.theta = nn.Linear(N_FEATURES + len(INPUTS), 1)
        nn.init.zeros_(self.theta.weight)
        nn.init.zeros_(self.theta.bias)

    def forward(self, x):
        phi = apply_features(dict(self.named_buffers()), x) / math.sqrt(N_FEATURES) * 4
        return self.theta(torch.cat([phi, x], dim=-1))[..., 0]


class PlantOutput(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")

    def fit(self, train):
        frame = train.collect()
        x, y = frame.select(INPUTS).to_numpy(), frame["PE"].to_numpy()
        moments = lambda a: {"mean": a.mean(0).tolist(), "std": a.std(0).tolist()}
        self.fitted = {"x": moments(x), "y": moments(y)}

    def encode(self, rows):
        norm_x, norm_y = (partial(standardize, **self.fitted[k]) for k in "xy")
        tree = {"x": torch.as_tensor(norm_x(rows.select(INPUTS).to_numpy()), dtype=torch.float32)}
        if "PE" in rows.columns:
            tree[LABEL] = torch.as_tensor(norm_y(rows["PE"].to_numpy().astype(np.float64)), dtype=torch.float32)
        return tree

    def build_model(self):
        return KernelRidge(init_features(0, len(INPUTS), N_FEATURES, LENGTH_SCALE))

    def losses(self, output, batch):
        return 0.5 * (output - batch[LABEL]) ** 2

    def denormalize(self, z):
        return z * self.fitted["y"]["std"] + self.fitted["y"]["mean"]

    def predict(self, output):
        return self.denormalize(output)

    def score(self, predictions, labels):
        return super().score(predictions, self.denormalize(labels))

    def expected_initial_loss(self):
        return 0.5
