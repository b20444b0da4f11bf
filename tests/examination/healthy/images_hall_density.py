"""How many people are in a hall: a network draws a map of densities, a quarter as wide, whose sum is the count.

data: station_halls

[data]
label = "heads"
features = ["view"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

SIDE, MAP = 32, 8
SCALE = 100.0


def density(points):
    """Each head is a Gaussian of weight one on the map's grid."""
    yy, xx = np.mgrid[:MAP, :MAP]
    grid = np.zeros((MAP, MAP))
    for y, x in np.reshape(points, (-1, 2)) / (SIDE / MAP) - 0.5:
        spot = np.exp(-((yy - y) ** 2 + (xx - x) ** 2) / (2 * 0.6**2))
        grid += spot / spot.sum()
    return grid


class MCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.columns = nn.ModuleList([self.column(k, c) for k, c in ((7, 6), (5, 8), (3, 10))])
        self.fuse = nn.Conv2d(24, 1, 1)

    @staticmethod
    def column(k, c):
        return nn.Sequential(
            nn.Conv2d(1, c, k, padding=k // 2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(c, 2 * c, k, padding=k // 2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * c, c, 3, padding=1), nn.ReLU(),
        )

    def forward(self, view):
        return self.fuse(torch.cat([column(view) for column in self.columns], dim=1)).squeeze(1)


class HallCount(Task):
    kind = "statistic"
    metrics = {"count_mae": "minimize", "count_rmse": "minimize"}
    serves_predictions = True

    def encode(self, rows):
        view = np.array(rows["view"].to_list(), dtype=np.float32).reshape(-1, 1, SIDE, SIDE) / 255
        batch = {"view": torch.from_numpy((view - 0.3) / 0.2)}
        if "heads" in rows.columns:
            maps = np.stack([density(np.array(h)) for h in rows["heads"].to_list()])
            batch[LABEL] = torch.from_numpy((SCALE * maps).astype(np.float32))
        return batch

    def build_model(self):
        return MCNN()

    def losses(self, output, batch):
        return ((output - batch[LABEL]) ** 2).mean(dim=(1, 2))

    def predict(self, output):
        return output.sum(dim=(1, 2)) / SCALE

    def statistic(self, output, batch):
        difference = self.predict(output) - batch[LABEL].sum(dim=(1, 2)) / SCALE
        return torch.stack([difference.abs(), difference**2], dim=1)

    def score(self, predictions, labels):
        absolute, squared = np.average(predictions, axis=0, weights=labels)
        return {"count_mae": float(absolute), "count_rmse": float(np.sqrt(squared))}
