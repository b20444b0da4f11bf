"""Reading a dial: regression from pixels through a sigmoid.

data: gauges

[data]
label = "value"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Gauge(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        values = train.select("value").collect()["value"]
        self.start = float(((values - 0.5) ** 2).mean())

    def state(self):
        return {"start": self.start}

    def load_state(self, state):
        self.start = state["start"]

    def encode(self, rows):
        photo = torch.tensor(rows["photo"].to_list(), dtype=torch.uint8)
        batch = {"photo": photo.view(-1, 1, 20, 20)}
        if "value" in rows.columns:
            batch[LABEL] = torch.tensor(rows["value"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Reader()

    def losses(self, output, batch):
        return (output - batch[LABEL]).pow(2)

    def predict(self, output):
        return output

    def expected_initial_loss(self):
        return self.start


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        )
        self.fc = nn.Sequential(nn.Linear(16 * 25, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, photo):
        x = photo.float() / 255.0
        return torch.sigmoid(self.fc(self.convs(x))).squeeze(-1)
