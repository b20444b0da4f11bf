"""Relapse from 600 markers of 420 patients: logs against the sample's own depth, heavy dropout, a narrow net.

data: tumour_markers

[data]
label = "relapse"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 1e-3, weight_decay = 0.1 }
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Relapse(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    @property
    def markers(self):
        return sorted(self.columns.features)

    def logs(self, df):
        x = df.select(self.markers).to_torch().double()
        return torch.log1p(1e4 * x / x.sum(1, keepdim=True))

    def fit(self, train):
        x = self.logs(train.collect())
        self.fitted = {"mean": x.mean(0).tolist(), "std": x.std(0).clamp(min=0.1).tolist()}

    def encode(self, rows):
        x = (self.logs(rows) - torch.tensor(self.fitted["mean"])) / torch.tensor(self.fitted["std"])
        batch = {"x": x.clamp(-5, 5).float()}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor((rows[self.columns.label] == "yes").to_list()).float()
        return batch

    def build_model(self):
        return MarkerNet(len(self.markers))

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")


class MarkerNet(nn.Module):
    def __init__(self, n, width=16):
        super().__init__()
        self.drop, self.squeeze = nn.Dropout(0.5), nn.Linear(n, width)
        self.norm, self.out = nn.BatchNorm1d(width), nn.Linear(width, 1)

    def forward(self, x):
        return self.out(F.dropout(F.relu(self.norm(self.squeeze(self.drop(x)))), 0.5, self.training))[:, 0]
