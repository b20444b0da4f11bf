"""PatchTST: reversible normalisation, patches of eight hours, one encoder layer.

data: town_load

[data]
label = "ahead"
time = "last_hour"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class PatchTST(nn.Module):
    def __init__(self, dim=32, patch=8, patches=6, horizon=8):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, dim)
        self.position = nn.Parameter(torch.randn(1, patches, dim) * 0.02)
        self.encoder = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(dim * patches, horizon)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, seen):
        mean, std = seen.mean(1, keepdim=True), seen.std(1, keepdim=True) + 1e-5
        x = (seen - mean) / std
        tokens = self.embed(x.unfold(1, self.patch, self.patch)) + self.position
        out = self.head(self.encoder(tokens).flatten(1))
        return out * std + mean


class LoadPatches(Task):
    kind = "statistic"
    metrics = {"mse": "minimize", "mae": "minimize"}

    def fit(self, train):
        df = train.select("seen", "ahead").collect()
        seen, ahead = np.array(df["seen"].to_list()), np.array(df["ahead"].to_list())
        self.scale = float(seen.std())
        self.start = float((((ahead - seen.mean(1, keepdims=True)) / self.scale) ** 2).mean())

    def state(self):
        return {"scale": self.scale, "start": self.start}

    def load_state(self, state):
        self.scale, self.start = state["scale"], state["start"]

    def encode(self, rows):
        batch = {"seen": torch.tensor(rows["seen"].to_list(), dtype=torch.float32) / self.scale}
        if "ahead" in rows.columns:
            batch[LABEL] = torch.tensor(rows["ahead"].to_list(), dtype=torch.float32) / self.scale
        return batch

    def build_model(self):
        return PatchTST()

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(1)

    def predict(self, output):
        return output * self.scale

    def statistic(self, output, batch):
        error = (output - batch[LABEL]) * self.scale
        return torch.stack([error.square().mean(1), error.abs().mean(1)], 1).double()

    def score(self, predictions, labels):
        mse, mae = np.average(predictions, axis=0, weights=labels)
        return {"mse": float(mse), "mae": float(mae)}

    def expected_initial_loss(self):
        return self.start
