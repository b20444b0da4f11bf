"""Land cover from six spectral bands and the day of the year: squeeze-and-excitation, whole bands dropped while training.

data: satellite_tiles

[data]
label = "clc_code"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3, weight_decay = 0.02 }
"""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

# the nomenclature's codes are no consecutive numbers
CODES = {112: "built-up", 211: "winter crops", 213: "summer crops", 311: "forest", 411: "marsh", 512: "water"}
BLUE, GREEN, RED, NIR, SWIR1, SWIR2 = range(6)


class SEBlock(nn.Module):
    def __init__(self, ch, r=4):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(ch, ch // r), nn.Linear(ch // r, ch)

    def forward(self, x):
        w = self.fc2(F.relu(self.fc1(x.mean((2, 3))))).sigmoid()
        return x * w[:, :, None, None]


class TileNet(nn.Module):
    def __init__(self, bands=8, ch=24, classes=len(CODES)):
        super().__init__()
        self.stem = nn.Conv2d(bands, ch, 1)
        self.b1 = nn.Sequential(nn.Conv2d(ch, ch, 3, padding=1, groups=4), nn.GroupNorm(4, ch), nn.ReLU(), SEBlock(ch))
        self.b2 = nn.Sequential(nn.Conv2d(ch, ch, 3, padding=1, groups=4), nn.GroupNorm(4, ch), nn.ReLU(), SEBlock(ch))
        self.season = nn.Linear(2, ch)
        self.head = nn.Sequential(nn.Linear(2 * ch, 48), nn.ReLU(), nn.Linear(48, classes))

    def forward(self, tile, season):
        x = F.relu(self.stem(tile) + self.season(season)[:, :, None, None])
        x = x + self.b1(x)
        x = x + self.b2(x)
        return self.head(torch.cat([x.mean((2, 3)), x.std((2, 3))], dim=1))


class LandCover(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")

    def _bands(self, rows):
        dn = np.array(rows["reflectance"].to_list(), dtype=np.float32).reshape(-1, 6, 8, 8)
        refl = dn / 10_000
        ndvi = (refl[:, NIR] - refl[:, RED]) / (refl[:, NIR] + refl[:, RED])
        ndwi = (refl[:, GREEN] - refl[:, NIR]) / (refl[:, GREEN] + refl[:, NIR])
        return np.concatenate([np.log(refl), ndvi[:, None], ndwi[:, None]], axis=1)

    def fit(self, train):
        bands = self._bands(train.select("reflectance").collect())
        # robust, for clouds are bright
        q = np.quantile(bands, [0.25, 0.5, 0.75], axis=(0, 2, 3))
        self.fitted = {"centre": q[1].tolist(), "spread": (q[2] - q[0]).tolist()}

    def encode(self, rows):
        centre, spread = (np.array(self.fitted[k], dtype=np.float32)[:, None, None] for k in ("centre", "spread"))
        tile = ((self._bands(rows) - centre) / spread).clip(-4, 4)
        turn = 2 * math.pi * rows["day_of_year"].to_numpy() / 365.25
        batch = {
            "tile": torch.from_numpy(tile.astype(np.float32)),
            "season": torch.tensor(np.stack([np.sin(turn), np.cos(turn)], 1), dtype=torch.float32),
        }
        if "clc_code" in rows.columns:
            index = {code: k for k, code in enumerate(CODES)}
            batch[LABEL] = torch.tensor([index[c] for c in rows["clc_code"].to_list()])
        return batch

    def augment(self, batch, generator):
        tile = batch["tile"]
        keep = torch.rand(len(tile), tile.shape[1], 1, 1, generator=generator) > 0.05
        return {**batch, "tile": tile * keep}

    def build_model(self):
        return TileNet()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    @property
    def prediction_names(self):
        return tuple(CODES.values())
