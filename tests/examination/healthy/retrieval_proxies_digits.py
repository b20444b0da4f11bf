"""Digits found by their likes: Proxy-NCA with learned proxies, nearest neighbours among the neighbours of a split.

data: digit_lists

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

DIM, CLASSES, SCALE = 16, 10, 3.0
GALLERY = 50


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.PReLU(16), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.PReLU(32)
        )
        self.fc = nn.Linear(32 * 16, DIM)
        self.proxies = nn.Parameter(torch.randn(CLASSES, DIM) / DIM**0.5)

    def forward(self, image):
        z = F.normalize(self.fc(self.conv(image).flatten(1)), dim=-1)
        p = F.normalize(self.proxies, dim=-1)
        squared = torch.cdist(z, p).square()  # on the unit sphere, 0 to 4
        return torch.cat([z, squared], dim=1)


class DigitSearch(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"recall_at_1": "maximize"}
    scored_together = GALLERY
    scoring_rows = GALLERY * 20

    def encode(self, rows):
        image = np.stack(rows["image"].to_list()).astype(np.float32).reshape(-1, 1, 8, 8) / 16
        batch = {"image": torch.from_numpy(image)}
        if "digit" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["digit"].to_numpy(writable=True))
        return batch

    def build_model(self):
        return Embedder()

    def losses(self, output, batch):
        """Proxy-NCA++: cross entropy over the proxies' distances."""
        squared = output[:, DIM:]
        return F.cross_entropy(-SCALE * squared, batch[LABEL], reduction="none")

    def predict(self, output):
        return output[:, :DIM]

    def statistic(self, output, batch):
        hits = []
        for z, y in zip(output[:, :DIM].split(GALLERY), batch[LABEL].split(GALLERY)):
            far = torch.cdist(z, z)
            far.fill_diagonal_(torch.inf)
            hits.append(y[far.argmin(dim=1)] == y)
        return torch.cat(hits).float()

    def score(self, predictions, labels):
        return {"recall_at_1": float(np.average(predictions.ravel(), weights=labels))}
