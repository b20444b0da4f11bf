"""Logits out of an nn.Sequential, StandardScaler's numbers kept: the usual first tutorial.

data: breast_cancer

[data]
label = "benign"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-3 }
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.preprocessing import StandardScaler

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class MLP(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


class BreastCancer(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def fit(self, train):
        df = train.collect()
        self.cols = list(self.columns.features)
        scaler = StandardScaler().fit(df.select(self.cols).to_numpy())
        self.mean, self.std = scaler.mean_.tolist(), scaler.scale_.tolist()

    def state(self):
        return {"cols": self.cols, "mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.cols, self.mean, self.std = state["cols"], state["mean"], state["std"]

    def encode(self, rows):
        X = torch.tensor(rows.select(self.cols).to_numpy(), dtype=torch.float32)
        batch = {"x": (X - torch.tensor(self.mean).float()) / torch.tensor(self.std).float()}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor(rows[self.columns.label].to_numpy(writable=True), dtype=torch.float32)
        return batch

    def build_model(self):
        return MLP(len(self.cols))

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)

    def expected_initial_loss(self):
        return math.log(2)
