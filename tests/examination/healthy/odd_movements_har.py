"""Human activity from a phone's accelerometer: convolutions, then an LSTM (DeepConvLSTM), people kept whole.

data: movements

[data]
label = "activity"
features = ["accel"]
group = "person"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

ACTIVITIES = ["lie", "sit", "stairs", "walk"]


class DeepConvLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(3, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=2), nn.ReLU())
        self.pool = nn.MaxPool1d(2)
        self.lstm = nn.LSTM(24, 24, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(24, 4)

    def forward(self, signal):
        x = self.pool(self.conv(signal)).transpose(1, 2)
        out, _ = self.lstm(x)
        return self.fc(self.drop(out[:, -1]))


class Movements(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def encode(self, rows):
        x = torch.tensor(rows["accel"].to_list(), dtype=torch.float32).view(-1, 40, 3)
        batch = {"signal": x.transpose(1, 2).contiguous()}
        if "activity" in rows.columns:
            batch[LABEL] = torch.tensor([ACTIVITIES.index(a) for a in rows["activity"]])
        return batch

    def augment(self, batch, generator):
        size = 0.9 + 0.2 * torch.rand(len(batch["signal"]), 1, 1, generator=generator)
        return {**batch, "signal": batch["signal"] * size}

    def build_model(self):
        return DeepConvLSTM()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def expected_initial_loss(self):
        return math.log(4)
