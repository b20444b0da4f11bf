"""DLinear: moving average and remainder, a linear layer each, the last value subtracted.

data: temperature_day

[data]
label = "next_hours"
time = "at"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class moving_avg(nn.Module):
    def __init__(self, kernel_size):
        super().__init__()
        self.kernel_size = kernel_size
        self.avg = nn.AvgPool1d(kernel_size=kernel_size, stride=1, padding=0)

    def forward(self, x):
        front = x[:, 0:1].repeat(1, (self.kernel_size - 1) // 2)
        end = x[:, -1:].repeat(1, (self.kernel_size - 1) // 2)
        return self.avg(torch.cat([front, x, end], dim=1).unsqueeze(1)).squeeze(1)


class DLinear(nn.Module):
    def __init__(self, seq_len=72, pred_len=6):
        super().__init__()
        self.decomp = moving_avg(25)
        self.Linear_Seasonal = nn.Linear(seq_len, pred_len)
        self.Linear_Trend = nn.Linear(seq_len, pred_len)
        for layer in (self.Linear_Seasonal, self.Linear_Trend):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        trend = self.decomp(x)
        seasonal = x - trend
        return self.Linear_Seasonal(seasonal) + self.Linear_Trend(trend)


class DLinearTask(Task):
    kind = "statistic"
    metrics = {"mse": "minimize"}

    def fit(self, train):
        df = train.select("history", "next_hours").collect()
        h, y = np.array(df["history"].to_list()), np.array(df["next_hours"].to_list())
        self.scale = float(h.std(axis=1).mean())
        self.start = float((((y - h[:, -1:]) / self.scale) ** 2).mean())

    def state(self):
        return {"scale": self.scale, "start": self.start}

    def load_state(self, state):
        self.scale, self.start = state["scale"], state["start"]

    def encode(self, rows):
        h = np.array(rows["history"].to_list())
        last = h[:, -1:]
        out = {"x": torch.tensor((h - last) / self.scale, dtype=torch.float32)}
        if "next_hours" in rows.columns:
            y = np.array(rows["next_hours"].to_list())
            out[LABEL] = torch.tensor((y - last) / self.scale, dtype=torch.float32)
        return out

    def build_model(self):
        return DLinear()

    def losses(self, output, batch):
        return ((output - batch[LABEL]) ** 2).mean(dim=1)

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        return self.losses(output, batch) * self.scale**2

    def score(self, predictions, labels):
        return {"mse": float(np.average(predictions.ravel(), weights=labels))}

    def expected_initial_loss(self):
        return self.start
