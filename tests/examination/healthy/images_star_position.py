"""Where is the star: a small CNN and two coordinates, with flips that flip the answer too.

data: stars

[data]
label = "where"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class Locator(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, plate):
        return self.head(self.features(plate))


class StarPosition(Task):
    kind = "statistic"
    metrics = {"pixels_off": "minimize"}

    def fit(self, train):
        where = np.array(train.select("where").collect()["where"].to_list())
        unit = where / 7.5 - 1
        self.start = float((unit**2).mean())

    def state(self):
        return {"start": self.start}

    def load_state(self, state):
        self.start = state["start"]

    def encode(self, rows):
        plate = np.array(rows["plate"].to_list(), dtype=np.float32).reshape(-1, 1, 16, 16)
        batch = {"plate": torch.from_numpy((plate - 50) / 40)}
        if "where" in rows.columns:
            batch[LABEL] = torch.tensor(rows["where"].to_list(), dtype=torch.float32) / 7.5 - 1
        return batch

    def augment(self, batch, generator):
        flip = torch.rand(len(batch["plate"]), generator=generator) < 0.5
        plate = torch.where(flip[:, None, None, None], batch["plate"].flip(3), batch["plate"])
        where = batch[LABEL].clone()
        where[flip, 0] = -where[flip, 0]
        return {**batch, "plate": plate, LABEL: where}

    def build_model(self):
        return Locator()

    def losses(self, output, batch):
        return ((output - batch[LABEL]) ** 2).mean(1)

    def predict(self, output):
        return (output + 1) * 7.5

    def statistic(self, output, batch):
        return (7.5 * (output - batch[LABEL])).norm(dim=1).double()

    def score(self, predictions, labels):
        return {"pixels_off": float(np.average(predictions.ravel(), weights=labels))}

    def expected_initial_loss(self):
        return self.start
