"""Tomorrow's loaves: a correction to last week's same day, in units of the branch's own mean; large branches count more.

data: bakery

[data]
label = "loaves"
time = "day"
meta = ["branch"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task


class Correction(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 16, kernel_size=3, padding=1)
        self.mlp = nn.Sequential(nn.Flatten(), nn.Linear(16 * 7, 32), nn.ReLU())
        self.out = nn.Linear(33, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, past, sunday):
        scale = past.mean(1, keepdim=True) + 1
        weeks = (past / scale).unflatten(1, (4, 7))  # a channel for each week
        h = self.mlp(self.conv(weeks))
        correction = self.out(torch.cat([h, sunday[:, None]], 1))
        return torch.cat([past[:, -7, None] / scale + correction, scale], 1)


class Loaves(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        self.fitted = {"mean": float(train.select("loaves").mean().collect().item())}

    def encode(self, rows):
        past = torch.tensor(rows["past"].to_list(), dtype=torch.float32)
        batch = {"past": past, "sunday": rows["sunday"].to_torch().float()}
        if "loaves" in rows.columns:
            batch[LABEL] = rows["loaves"].to_torch().float()
            batch[WEIGHT] = (past.mean(1) + 1) / self.fitted["mean"]
        return batch

    def build_model(self):
        return Correction()

    def losses(self, output, batch):
        relative, scale = output[:, 0], output[:, 1]
        return nn.functional.l1_loss(relative, batch[LABEL] / scale, reduction="none")

    def predict(self, output):
        return (output[:, 0] * output[:, 1]).clamp(min=0)
