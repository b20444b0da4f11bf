"""Two photographs of one bolt of cloth, without negatives: VICReg's invariance, variance and
covariance over a batch behind an expander, judged by finding the bolt's other photograph with the
features before it.

data: fabric_pairs

[data]
label = "back"
features = ["front"]
time = "arrived"
ids = ["row_id"]
meta = ["origin"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 1e-6 }
strategy = "single"

[resources]
num_processes = 1
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIDE, DIM, WIDE = 26, 48, 96
PANEL = 64
SIM, STD, COV = 25.0, 25.0, 1.0


def off_diagonal(x):
    n, m = x.shape
    return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


def vicreg(x, y):
    """A number for each pair; what is the batch's is the same in all of them."""
    repr_loss = (x - y).pow(2).mean(1)
    std_loss, cov_loss = 0.0, 0.0
    for z in (x, y):
        z = z - z.mean(0)
        std = torch.sqrt(z.var(0, unbiased=False) + 1e-4)
        std_loss = std_loss + F.relu(1 - std).mean() / 2
        cov = z.T @ z / max(1, len(z) - 1)
        cov_loss = cov_loss + off_diagonal(cov).pow(2).sum() / WIDE
    return SIM * repr_loss + STD * std_loss + COV * cov_loss


class Backbone(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 24, 7, padding=3, stride=1), nn.GroupNorm(4, 24), nn.GELU(),
            nn.AvgPool2d(2),
            nn.Conv2d(24, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.GELU(),
            nn.AvgPool2d(2),
            nn.Conv2d(32, DIM, 3, padding=1), nn.GELU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )


class VICReg(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.expander = nn.Sequential(
            nn.Linear(DIM, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE)
        )

    def forward(self, front, back=None):
        h = self.backbone(front)
        if back is None:
            return h
        g = self.backbone(back)
        return torch.cat([h, g, self.expander(h), self.expander(g)], dim=1)


class Fabrics(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    needs_whole_batch = True
    serves_predictions = True
    scored_together = PANEL
    scoring_rows = 4 * PANEL

    def photo(self, column):
        raw = np.array(column.to_list(), dtype=np.uint8).reshape(-1, 1, SIDE, SIDE)
        x = torch.from_numpy(raw.astype(np.float32))
        return (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + 1.0)

    def encode(self, rows):
        batch = {"front": self.photo(rows["front"])}
        if "back" in rows.columns:
            batch["back"] = self.photo(rows["back"])
            batch[LABEL] = torch.zeros(len(rows))  # its own
        return batch

    def augment(self, batch, generator):
        found = dict(batch)
        for name in ("front", "back"):
            x = batch[name]
            gain = 1 + 0.2 * torch.randn(len(x), 1, 1, 1, generator=generator)
            found[name] = x * gain + 0.1 * torch.randn(x.shape, generator=generator)
        if torch.rand(1, generator=generator) < 0.5:  # a cloth's mirror image, both or none
            found["front"], found["back"] = found["front"].flip(3), found["back"].flip(3)
        return found

    def build_model(self):
        return VICReg()

    def training_losses(self, output, batch):
        return vicreg(output[:, 2 * DIM : 2 * DIM + WIDE], output[:, 2 * DIM + WIDE :])

    def losses(self, output, batch):
        x, y = output[:, 2 * DIM :].split(WIDE, dim=1)
        return torch.cat([vicreg(a, b) for a, b in zip(x.split(PANEL), y.split(PANEL))])

    def predict(self, output):
        return output[:, :DIM]

    def statistic(self, output, batch):
        ranks = []
        for panel in output.split(PANEL):
            h, g = (F.normalize(v, dim=1) for v in panel[:, : 2 * DIM].split(DIM, dim=1))
            s = h @ g.T
            own = s.diagonal()[:, None]
            ranks.append(torch.stack([(s > own).sum(1), (s == own).sum(1)], dim=1))
        return torch.cat(ranks).double()
