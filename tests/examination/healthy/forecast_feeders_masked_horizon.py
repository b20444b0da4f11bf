"""Six hours of a feeder's load, some not metered: instance-normalised, a linear map for trend and one for the rest.

data: feeders

[data]
label = "ahead"
time = "at"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class NLinear(nn.Module):
    def __init__(self, past=48, ahead=6):
        super().__init__()
        self.average = nn.AvgPool1d(13, 1, 6, count_include_pad=False)
        self.trend, self.rest = nn.Linear(past, ahead), nn.Linear(past, ahead)

    def forward(self, load):
        last = load[:, -1:]
        x = load - last
        smooth = self.average(x[:, None])[:, 0]
        return self.trend(smooth) + self.rest(x - smooth) + last


class FeederLoad(Task):
    kind = "statistic"
    metrics = {"mae": "minimize"}
    serves_predictions = True

    def encode(self, rows):
        batch = {"load": torch.tensor(rows["load"].to_list(), dtype=torch.float32)}
        if "ahead" in rows.columns:
            ahead = np.array(rows["ahead"].to_list(), dtype=np.float32)
            batch[LABEL] = torch.from_numpy(np.where(np.isnan(ahead), -1, ahead))
        return batch

    def build_model(self):
        return NLinear()

    def losses(self, output, batch):
        metered = (batch[LABEL] >= 0).float()
        squared = (output - batch[LABEL]).square() * metered / 100
        return squared.sum(1) / metered.sum(1).clamp(min=1)

    def statistic(self, output, batch):
        metered = (batch[LABEL] >= 0).float()
        return ((output - batch[LABEL]).abs() * metered).sum(1) / metered.sum(1).clamp(min=1)

    def score(self, predictions, labels):
        return {"mae": float(np.average(predictions.ravel(), weights=labels))}
