"""Cycles left of a turbofan: windows of sensors, a small CNN, engines kept whole by the split.

data: engines

[data]
label = "cycles_left"
features = ["window"]
group = "engine"
meta = ["cycle"]
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class RulCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(4, 24, 5, padding=2)
        self.conv2 = nn.Conv1d(24, 24, 5, padding=2, stride=2)
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(240, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, sensors):
        x = torch.relu(self.conv2(torch.relu(self.conv1(sensors))))
        return self.fc(x)


class RemainingLife(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae")

    def fit(self, train):
        df = train.select("window", "cycles_left").collect()
        x = torch.tensor(df["window"].to_list()).view(-1, 4)
        y = df["cycles_left"]
        self.fitted = {
            "mean": x.mean(0).tolist(), "std": x.std(0).tolist(),
            "y_mean": float(y.mean()), "y_std": float(y.std()),
        }

    def encode(self, rows):
        x = torch.tensor(rows["window"].to_list(), dtype=torch.float32).view(-1, 20, 4)
        x = (x - torch.tensor(self.fitted["mean"])) / torch.tensor(self.fitted["std"])
        batch = {"sensors": x.permute(0, 2, 1).contiguous()}
        if "cycles_left" in rows.columns:
            batch[LABEL] = torch.tensor(rows["cycles_left"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return RulCNN()

    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted["y_mean"]) / self.fitted["y_std"]
        return (output.squeeze(1) - target).square()

    def predict(self, output):
        return output.squeeze(1) * self.fitted["y_std"] + self.fitted["y_mean"]
