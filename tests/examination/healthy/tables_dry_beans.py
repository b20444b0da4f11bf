"""Seven varieties of dry beans from their outline: a dataclass of settings, shape factors by
numpy, linear layers with batch normalisation, cross-entropy.

data: dry_beans

[data]
label = "variety"
ids = ["row_id"]
meta = ["tray"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


@dataclass(frozen=True)
class Config:
    hidden: tuple[int, ...] = (48, 32)
    dropout: float = 0.1
    n_features: int = 10


CFG = Config()


def shape_factors(rows):
    """One line per bean: sizes as logarithms, the rest without a unit."""
    names = ["area", "major_axis", "minor_axis", "convex_area", "eccentricity", "extent"]
    area, major, minor, convex, ecc, extent = (rows[n].to_numpy().astype(float) for n in names)
    h = ((major - minor) / (major + minor)) ** 2
    ellipse = np.pi / 2 * (major + minor) * (1 + h / 4)
    perimeter = rows["perimeter"].cast(float).to_numpy().copy()
    failed = np.isnan(perimeter)
    perimeter = np.where(failed, ellipse, perimeter)
    return np.stack(
        [
            np.log(area),
            np.log(perimeter),
            major / minor,
            ecc,
            np.sqrt(4 * area / np.pi) / major,
            4 * np.pi * area / perimeter**2,
            area / convex,
            extent,
            rows["brightness"].to_numpy(),
            failed.astype(float),
        ],
        axis=1,
    )


class BeanNet(nn.Module):
    def __init__(self, n_classes, cfg=CFG):
        super().__init__()
        layers, width = [], cfg.n_features
        for h in cfg.hidden:
            layers += [nn.Linear(width, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Dropout(cfg.dropout)]
            width = h
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, n_classes)
        self.apply(self.init_weights)

    @staticmethod
    def init_weights(module):
        if isinstance(module, nn.Linear):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.head(self.body(x))


class DryBeans(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "macro_f1")

    def fit(self, train):
        df = train.collect()
        X = shape_factors(df)
        self.fitted = {
            "mean": X.mean(axis=0).tolist(),
            "std": (X.std(axis=0) + 1e-9).tolist(),
            "varieties": sorted(df["variety"].unique()),
        }

    def encode(self, rows):
        mean, std = np.array(self.fitted["mean"]), np.array(self.fitted["std"])
        X = (shape_factors(rows) - mean) / std
        batch = {"x": torch.from_numpy(X.astype(np.float32))}
        if "variety" in rows.columns:
            index = {v: i for i, v in enumerate(self.fitted["varieties"])}
            batch[LABEL] = torch.tensor([index[v] for v in rows["variety"]])
        return batch

    def build_model(self):
        return BeanNet(len(self.fitted["varieties"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return F.softmax(output, dim=1)

    @property
    def prediction_names(self):
        return list(self.fitted["varieties"])
