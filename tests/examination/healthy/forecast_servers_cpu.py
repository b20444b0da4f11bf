"""CPU of a server for the next hour, twelve values at once: per cent to 0..1, a 1D CNN over four
hours of three series, role one-hot.

data: server_loads

[data]
label = "cpu_next"
time = "measured_at"
time_is_feature = true
ids = ["row_id"]
meta = ["server"]

[split]
period = "week"

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-3 }
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SEQ_LEN, HORIZON = 48, 12
ROLES = ["web", "batch", "database", "cache"]


class CpuCNN(nn.Module):
    def __init__(self, in_channels=4, channels=32):
        super().__init__()
        self.conv1 = nn.Conv1d(in_channels, channels, kernel_size=5, padding=2)
        self.conv2 = nn.Conv1d(channels, channels, kernel_size=5, padding=2)
        self.pool = nn.MaxPool1d(2)
        self.fc1 = nn.Linear(channels * SEQ_LEN // 2 + len(ROLES) + 2, 64)
        self.fc2 = nn.Linear(64, HORIZON)

    def forward(self, seq, static):
        x = seq.transpose(1, 2)  # (B, T, C) -> (B, C, T)
        x = F.relu(self.conv1(x))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.cat([x.flatten(1), static], dim=1)
        x = F.dropout(F.relu(self.fc1(x)), 0.25, self.training)
        last = seq[:, -1, :1]
        return last + self.fc2(x)


class ServerCpu(Task):
    kind = "statistic"
    metrics = directions_of("forecast_rmse", "forecast_mae")
    statistics = ("squared", "absolute")
    serves_predictions = True

    def fit(self, train):
        df = train.select("requests").collect()
        top = df["requests"].explode().quantile(0.99)
        self.fitted = {"requests": float(top)}

    def encode(self, rows):
        seq = torch.zeros(rows.height, SEQ_LEN, 4)
        for i, values in enumerate(rows["cpu"].to_list()):
            known = 0.0
            for t, v in enumerate(values):
                if v is not None:
                    known = v
                seq[i, t, 0] = known / 100
                seq[i, t, 3] = float(v is None)
        seq[:, :, 1] = torch.tensor(rows["memory"].to_list()) / 100
        seq[:, :, 2] = (torch.tensor(rows["requests"].to_list()) / self.fitted["requests"]).clamp(
            max=2
        )
        static = torch.zeros(rows.height, len(ROLES) + 2)
        for i, (role, when) in enumerate(zip(rows["role"], rows["measured_at"])):
            static[i, ROLES.index(role)] = 1
            angle = 2 * math.pi * (when.hour + when.minute / 60) / 24
            static[i, -2], static[i, -1] = math.sin(angle), math.cos(angle)
        batch = {"seq": seq, "static": static}
        if "cpu_next" in rows.columns:
            batch[LABEL] = torch.tensor(rows["cpu_next"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return CpuCNN()

    def losses(self, output, batch):
        return F.mse_loss(output * 10, batch[LABEL] / 10, reduction="none").mean(1)

    def predict(self, output):
        return (output * 100).clamp(0, 100)

    def statistic(self, output, batch):
        error = self.predict(output) - batch[LABEL]
        return torch.stack([error.pow(2).mean(1), error.abs().mean(1)], dim=1)

    @property
    def prediction_names(self):
        return [f"cpu_in_{5 * (k + 1)}_min" for k in range(HORIZON)]
