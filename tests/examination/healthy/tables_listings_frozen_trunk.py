"""Prices of flats: another team's vector goes through frozen layers that `fit` computed, a small head is trained.

data: listings

[data]
label = "price"
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


class PriceNet(nn.Module):
    def __init__(self, components, mean):
        super().__init__()
        self.trunk = nn.Linear(components.shape[1], components.shape[0])
        with torch.no_grad():
            self.trunk.weight.copy_(components)
            self.trunk.bias.copy_(-components @ mean)
        for parameter in self.trunk.parameters():
            parameter.requires_grad = False
        self.head = nn.Sequential(nn.LayerNorm(components.shape[0] + 2), nn.Linear(components.shape[0] + 2, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 1))

    def forward(self, vector, facts):
        return self.head(torch.cat([self.trunk(vector), facts], dim=-1))


class ListingPrice(Task):
    kind = "regression"

    def fit(self, train):
        df = train.collect()
        x = np.array(df["vector"].to_list())
        mean = x.mean(0)
        _, s, vt = np.linalg.svd(x - mean, full_matrices=False)
        y = df["price"].log().to_numpy()
        self.fitted = {
            "mean": mean.tolist(),
            "components": (vt[:8] / (s[:8, None] / np.sqrt(len(x)))).tolist(),
            "facts": [[3.5, float(df["area"].log().mean())], [1.7, float(df["area"].log().std())]],
            "y": [float(y.mean()), float(y.std())],
        }

    def encode(self, rows):
        mean, std = self.fitted["facts"]
        facts = np.column_stack([rows["rooms"].to_numpy(), np.log(rows["area"].to_numpy())])
        batch = {
            "vector": torch.tensor(rows["vector"].to_list(), dtype=torch.float32),
            "facts": torch.tensor((facts - mean) / std, dtype=torch.float32),
        }
        if "price" in rows.columns:
            batch[LABEL] = torch.tensor(rows["price"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return PriceNet(torch.tensor(self.fitted["components"]), torch.tensor(self.fitted["mean"]))

    def losses(self, output, batch):
        mean, std = self.fitted["y"]
        return (output.flatten() - (batch[LABEL].log() - mean) / std) ** 2

    def predict(self, output):
        mean, std = self.fitted["y"]
        return (output.flatten() * std + mean).exp()
