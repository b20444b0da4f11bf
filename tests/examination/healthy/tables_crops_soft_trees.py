"""Oblivious soft trees (NODE in small) on the crop recommendation table.

data: crops

[data]
label = "crop"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-2, weight_decay = 0.0 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SoftTrees(nn.Module):
    def __init__(self, n_features, n_classes, trees=12, depth=4):
        super().__init__()
        self.choice = nn.Parameter(torch.randn(trees, depth, n_features) * 0.5)
        self.threshold = nn.Parameter(torch.randn(trees, depth) * 0.5)
        self.response = nn.Parameter(torch.randn(trees, 2**depth, n_classes) * 0.01)
        bits = torch.arange(2**depth)[:, None] >> torch.arange(depth) & 1
        self.register_buffer("bits", bits.float())

    def forward(self, features):
        chosen = torch.einsum("bf,tdf->btd", features, self.choice.softmax(-1))
        right = torch.sigmoid(2 * (chosen - self.threshold)).unsqueeze(2)
        leaf = (self.bits * right + (1 - self.bits) * (1 - right)).prod(-1)
        return torch.einsum("btl,tlc->bc", leaf, self.response)


class CropTrees(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")
    inputs = ("N", "P", "K", "temperature", "humidity", "ph", "rainfall")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "mean": {c: float(df[c].mean()) for c in self.inputs},
            "std": {c: float(df[c].std()) for c in self.inputs},
            "crops": sorted(df["crop"].unique().to_list()),
        }

    def encode(self, rows):
        scaled = [
            ((rows[c] - self.fitted["mean"][c]) / self.fitted["std"][c]).to_numpy() for c in self.inputs
        ]
        out = {"features": torch.stack([torch.tensor(c, dtype=torch.float32) for c in scaled], dim=1)}
        if "crop" in rows.columns:
            index = {c: i for i, c in enumerate(self.fitted["crops"])}
            out[LABEL] = torch.tensor([index[c] for c in rows["crop"]])
        return out

    def build_model(self):
        return SoftTrees(len(self.inputs), len(self.fitted["crops"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def expected_initial_loss(self):
        return math.log(len(self.fitted["crops"]))
