"""N-BEATS, generic: two stacks, backcast subtracted, forecasts summed.

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

BACK, FORE = 72, 6


class NBeatsBlock(nn.Module):
    def __init__(self, units=64, theta=16):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(BACK, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU())
        self.theta_b, self.theta_f = nn.Linear(units, theta, bias=False), nn.Linear(units, theta, bias=False)
        self.backcast_g, self.forecast_g = nn.Linear(theta, BACK), nn.Linear(theta, FORE)

    def forward(self, x):
        h = self.fc(x)
        return self.backcast_g(self.theta_b(h)), self.forecast_g(self.theta_f(h))


class NBeats(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList([NBeatsBlock() for _ in range(blocks)])

    def forward(self, history):
        backcast, forecast = history, torch.zeros(len(history), FORE)
        for block in self.blocks:
            b, f = block(backcast)
            backcast = backcast - b
            forecast = forecast + f
        return forecast


class NextHours(Task):
    kind = "statistic"
    metrics = {"mae": "minimize"}

    def fit(self, train):
        h = np.array(train.select("history").collect()["history"].to_list())
        y = np.array(train.select("next_hours").collect()["next_hours"].to_list())
        self.mean, self.std = float(h.mean()), float(h.std())
        self.spread = float((((y - self.mean) / self.std) ** 2).mean())

    def state(self):
        return {"mean": self.mean, "std": self.std, "spread": self.spread}

    def load_state(self, state):
        self.mean, self.std, self.spread = state["mean"], state["std"], state["spread"]

    def encode(self, rows):
        norm = lambda c: torch.tensor((np.array(rows[c].to_list()) - self.mean) / self.std, dtype=torch.float32)
        batch = {"history": norm("history")}
        if "next_hours" in rows.columns:
            batch[LABEL] = norm("next_hours")
        return batch

    def build_model(self):
        return NBeats()

    def losses(self, output, batch):
        return nn.functional.mse_loss(output, batch[LABEL], reduction="none").mean(-1)

    def predict(self, output):
        return output * self.std + self.mean

    def statistic(self, output, batch):
        return (output - batch[LABEL]).abs().mean(-1) * self.std

    def score(self, predictions, labels):
        return {"mae": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return self.spread
