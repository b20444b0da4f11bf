"""A denoising autoencoder for tables: cells are swapped with those of other rows (Porto Seguro).

data: cell_profiles

[data]
label = "profile"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


def rank_gauss(values, knots):
    """Quantiles of a normal, by where a value lies among the knots."""
    share = np.interp(values, knots, np.linspace(0.005, 0.995, len(knots)))
    return torch.special.ndtri(torch.tensor(share)).float()


class SwapNoise(Task):
    kind = "statistic"
    metrics = {"rmse": "minimize"}
    reconstructs_inputs = True
    swapped = 0.15

    def fit(self, train):
        self.names = sorted(self.columns.features)
        df = train.select(self.names).collect()
        at = np.linspace(0, 1, 60)
        self.knots = [np.quantile(df[c].to_numpy(), at).tolist() for c in self.names]
        x = torch.stack([rank_gauss(df[c].to_numpy(), k) for c, k in zip(self.names, self.knots)], 1)
        self.start = float(x.square().mean())

    def state(self):
        return {"names": self.names, "knots": self.knots, "start": self.start}

    def load_state(self, state):
        self.names, self.knots, self.start = state["names"], state["knots"], state["start"]

    def encode(self, rows):
        cells = [rank_gauss(rows[c].to_numpy(), k) for c, k in zip(self.names, self.knots)]
        batch = {"cells": torch.stack(cells, dim=1)}
        if "profile" in rows.columns:
            whole = np.array(rows["profile"].to_list()).reshape(len(rows), -1)
            batch[LABEL] = torch.stack([rank_gauss(whole[:, i], k) for i, k in enumerate(self.knots)], 1)
        return batch

    def augment(self, batch, generator):
        cells = batch["cells"]
        donors = torch.randint(len(cells), cells.shape, generator=generator)
        swap = torch.rand(cells.shape, generator=generator) < self.swapped
        return batch | {"cells": torch.where(swap, cells.gather(0, donors), cells)}

    def build_model(self):
        return Denoiser(len(self.names))

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(dim=1)

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"rmse": float(np.sqrt(np.average(predictions.reshape(-1), weights=labels)))}

    def expected_initial_loss(self):
        return self.start


class Denoiser(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(d, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, d))
        self.stack[-1].weight.data.mul_(0.1)

    def forward(self, cells):
        return self.stack(cells)
