"""Long-tailed faults of steel: logit-adjusted cross-entropy while training, uniform classes when asked.

data: steel_faults

[data]
label = "fault"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { name = "sgd", learning_rate = 0.03, weight_decay = 1e-4 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

TAU = 1.0


def rank_gauss(column, grid):
    """The value's quantile among the training rows, as a normal score."""
    q = np.interp(column, grid, np.linspace(0.005, 0.995, len(grid)))
    return torch.special.ndtri(torch.from_numpy(q)).float()


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.bn, self.a, self.b = nn.BatchNorm1d(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.bn(x))))


class FaultNet(nn.Module):
    def __init__(self, d_in, n_classes, d=32):
        super().__init__()
        self.first = nn.Linear(d_in, d)
        self.blocks = nn.Sequential(Block(d), Block(d))
        self.last = nn.Linear(d, n_classes)

    def forward(self, plate):
        return self.last(torch.relu(self.blocks(self.first(plate))))


class SteelFaults(Task):
    kind = "multiclass"
    metrics = directions_of("balanced_accuracy", "macro_f1")
    n_classes = 7

    def fit(self, train):
        df = train.collect()
        names = [f"m{k}" for k in range(10)]
        counts = np.bincount(df["fault"].to_numpy(), minlength=self.n_classes)
        self.fitted = {
            "grids": {c: np.maximum.accumulate(np.quantile(df[c], np.linspace(0, 1, 65))).tolist() for c in names},
            "log_prior": np.log(counts / counts.sum()).tolist(),
        }

    def encode(self, rows):
        plate = [rank_gauss(rows[c].to_numpy(), grid) for c, grid in sorted(self.fitted["grids"].items())]
        batch = {"plate": torch.stack(plate, dim=1)}
        if "fault" in rows.columns:
            batch[LABEL] = torch.tensor(rows["fault"].to_list())
        return batch

    def build_model(self):
        return FaultNet(10, self.n_classes)

    def losses(self, output, batch):
        """The likelihood of the frequent and the rare as they come: the prior is added."""
        log_prior = torch.tensor(self.fitted["log_prior"])
        return nn.functional.cross_entropy(output + TAU * log_prior, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(dim=-1)
