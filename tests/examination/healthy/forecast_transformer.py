"""A transformer encoder over patches of hours (PatchTST in small), instance normalisation.

data: temperature_day

[data]
label = "next_hours"
time = "at"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 1e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class PatchTST(nn.Module):
    def __init__(self, patch=8, d=32):
        super().__init__()
        self.patch = patch
        self.proj = nn.Linear(patch, d)
        self.pos = nn.Parameter(torch.randn(1, 72 // patch, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d * (72 // patch), 6)
        nn.init.trunc_normal_(self.head.weight, std=0.005)
        nn.init.zeros_(self.head.bias)

    def forward(self, past):
        x = past.unfold(1, self.patch, self.patch)
        z = self.encoder(self.proj(x) + self.pos)
        return self.head(z.flatten(1))


class PatchForecast(Task):
    kind = "statistic"
    metrics = {"mae": "minimize"}

    def fit(self, train):
        df = train.collect()
        past, future = (np.array(df[c].to_list()) for c in ("history", "next_hours"))
        centre, spread = past.mean(1, keepdims=True), past.std(1, keepdims=True) + 1.0
        self.start = float((((future - centre) / spread) ** 2).mean())

    def state(self):
        return {"start": self.start}

    def load_state(self, state):
        self.start = state["start"]

    def encode(self, rows):
        past = torch.tensor(rows["history"].to_list(), dtype=torch.float32)
        centre, spread = past.mean(1, keepdim=True), past.std(1, keepdim=True, correction=0) + 1.0
        batch = {"past": (past - centre) / spread}
        if "next_hours" in rows.columns:
            future = torch.tensor(rows["next_hours"].to_list(), dtype=torch.float32)
            batch[LABEL] = (future - centre) / spread
        return batch

    def build_model(self):
        return PatchTST()

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(1)

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        return (output - batch[LABEL]).abs().mean(1)

    def score(self, predictions, labels):
        return {"mae": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return self.start
