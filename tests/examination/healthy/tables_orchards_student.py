"""Yields of orchard blocks: centre and spread of a Student's t from a small residual network.

data: orchard_yields

[data]
label = "tonnes_per_ha"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
from torch import nn
from torch.distributions import StudentT

from perennial.engine.task import LABEL, Task

CONTINUOUS = ["planted_years", "density", "hectares", "frost_nights", "rain_mm", "blossom"]


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.SiLU(), nn.Dropout(0.05), nn.Linear(dim, dim))

    def forward(self, x):
        return x + self.net(x)


class YieldNet(nn.Module):
    def __init__(self, growers, varieties, dim=32):
        super().__init__()
        self.emb_grower = nn.Embedding(growers + 1, 6)
        self.emb_variety = nn.Embedding(varieties + 1, 4)
        self.inp = nn.Linear(len(CONTINUOUS) + 11, dim)
        self.blocks = nn.Sequential(Block(dim), Block(dim))
        self.out = nn.Linear(dim, 2)

    def forward(self, x_num, x_cat):
        cats = [self.emb_grower(x_cat[:, 0]), self.emb_variety(x_cat[:, 1])]
        return self.out(self.blocks(self.inp(torch.cat([x_num, *cats], -1))))


class Orchards(Task):
    kind = "statistic"
    metrics = {"nll": "minimize", "mae": "minimize"}

    def _numbers(self, rows):
        return (
            rows.with_columns(density=rows["trees"] / rows["hectares"])
            .select(CONTINUOUS)
            .to_numpy()
            .astype(np.float64)
        )

    def fit(self, train):
        rows = train.collect()
        numbers = self._numbers(rows)
        y = rows["tonnes_per_ha"]
        self.fitted = {
            "centre": np.nanmedian(numbers, axis=0).tolist(),
            "scale": np.nanstd(numbers, axis=0).tolist(),
            "grower": sorted(set(rows["grower"])),
            "variety": sorted(set(rows["variety"])),
            "y": [y.mean(), y.std()],
        }

    def encode(self, rows):
        f = self.fitted
        z = (self._numbers(rows) - f["centre"]) / f["scale"]
        no_rain = np.isnan(z[:, [4]])
        x_num = np.concatenate([np.nan_to_num(z).clip(-4, 4), no_rain], axis=1)
        cats = []
        for name in ("grower", "variety"):
            lookup = dict(zip(f[name], range(1, len(f[name]) + 1), strict=True))
            cats.append([lookup.get(v, 0) for v in rows[name]])
        batch = {"x_num": torch.tensor(x_num).float(), "x_cat": torch.tensor(cats).T.contiguous()}
        if "tonnes_per_ha" in rows.columns:
            batch[LABEL] = torch.tensor(rows["tonnes_per_ha"].to_numpy()).float()
        return batch

    def build_model(self):
        return YieldNet(len(self.fitted["grower"]), len(self.fitted["variety"]))

    def distribution(self, output):
        mean, std = self.fitted["y"]
        scale = nn.functional.softplus(output[:, 1]) + 0.01
        return StudentT(4.0, output[:, 0] * std + mean, scale * std)

    def losses(self, output, batch):
        return -self.distribution(output).log_prob(batch[LABEL])

    def statistic(self, output, batch):
        wrong = (self.distribution(output).loc - batch[LABEL]).abs()
        return torch.stack([self.losses(output, batch), wrong], dim=1)

    def score(self, predictions, labels):
        nll, mae = np.average(predictions, axis=0, weights=labels)
        return {"nll": float(nll), "mae": float(mae)}
