"""Blood glucose in half an hour: a GRU over readings, carbohydrates and insulin; it adds a change to the last reading.

data: glucose

[data]
label = "glucose_in_30min"
time = "taken_at"
meta = ["patient"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CHANNELS = ("glucose", "carbs", "insulin")


class GlucoseGRU(nn.Module):
    def __init__(self, mean, std, step, hidden=32):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("std", torch.tensor(std))
        self.step = step  # the usual change in half an hour, mg/dl
        self.gru = nn.GRU(len(CHANNELS), hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)
        nn.init.zeros_(self.head.bias)

    def forward(self, history):  # [B, T, 3], raw units
        last = history[:, -1, 0]
        z = (history - self.mean) / self.std
        h, _ = self.gru(z)
        change = self.head(h[:, -1]).squeeze(-1)
        return last + self.step * change


class Glucose(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    @staticmethod
    def history(rows):
        return np.stack([np.array(rows[c].to_list(), dtype=np.float32) for c in CHANNELS], axis=-1)

    def fit(self, train):
        df = train.collect()
        x = self.history(df).reshape(-1, len(CHANNELS)).astype(float)
        change = df["glucose_in_30min"].to_numpy() - df["glucose"].list.last().to_numpy()
        self.fitted = {"mean": x.mean(0).tolist(), "std": x.std(0).tolist(), "step": float(change.std())}

    def encode(self, rows):
        batch = {"history": torch.from_numpy(self.history(rows))}
        if "glucose_in_30min" in rows.columns:
            batch[LABEL] = torch.tensor(rows["glucose_in_30min"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return GlucoseGRU(self.fitted["mean"], self.fitted["std"], self.fitted["step"])

    def losses(self, output, batch):
        return ((output - batch[LABEL]) / self.fitted["step"]) ** 2
