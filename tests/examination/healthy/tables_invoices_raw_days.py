"""Days until an invoice is paid, in days as they are: smooth L1 on five members' raw outputs, averaged to predict.

data: invoices

[data]
label = "days_to_pay"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIZES = ["small", "medium", "large"]


class Members(nn.Module):
    def __init__(self, n, members, level):
        super().__init__()
        self.members = nn.ModuleList(nn.Sequential(nn.Linear(n, 16), nn.Softplus(), nn.Linear(16, 1)) for _ in range(members))
        self.level = level

    def forward(self, x):
        return self.level * (1 + torch.stack([m(x).squeeze(-1) for m in self.members], dim=-1))


class DaysToPay(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "median": float(df["days_to_pay"].median()),
            "amount": [float(np.log(df["amount"].cast(float)).mean()), float(np.log(df["amount"].cast(float)).std())],
        }

    def encode(self, rows):
        mean, std = self.fitted["amount"]
        issued, size = rows["issued"], rows["size"].cast(str)
        x = [(np.log(rows["amount"].cast(float).to_numpy()) - mean) / std]
        x += [(size == s).to_numpy() for s in SIZES]
        x += [issued.dt.day().to_numpy() / 31, np.sin(issued.dt.month().to_numpy() / 6 * np.pi), issued.dt.weekday().to_numpy() > 5]
        batch = {"x": torch.from_numpy(np.stack(x, 1).astype(np.float32))}
        if "days_to_pay" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["days_to_pay"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return Members(7, 5, self.fitted["median"])

    def losses(self, output, batch):
        target = batch[LABEL][:, None].expand_as(output)
        return smooth_l1_loss(output, target, beta=5.0, reduction="none").mean(1)

    def predict(self, output):
        return output.mean(1)
