"""d2l's first sequence model: eight lags as columns, two small layers.

data: waves

[data]
label = "y"
time = "at"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 16
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def get_net():
    net = Net(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 1))
    nn.init.xavier_uniform_(net[0].weight)
    nn.init.normal_(net[2].weight, std=0.1)
    return net


class Net(nn.Sequential):
    def forward(self, lags):
        return super().forward(lags)


class SineWave(Task):
    kind = "regression"
    metrics = directions_of("rmse", "r2")

    def fit(self, train):
        self.power = float((train.select("y").collect()["y"] ** 2).mean())

    def state(self):
        return {"power": self.power}

    def load_state(self, state):
        self.power = state["power"]

    def encode(self, rows):
        lags = rows.select([f"lag_{k}" for k in range(1, 9)]).to_numpy().astype(np.float32)
        batch = {"lags": torch.from_numpy(lags)}
        if "y" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["y"].to_numpy().astype(np.float32)).reshape(-1, 1)
        return batch

    def build_model(self):
        return get_net()

    def losses(self, output, batch):
        return nn.MSELoss(reduction="none")(output, batch[LABEL]).squeeze(1)

    def predict(self, output):
        return output.squeeze(1)

    def score(self, predictions, labels):
        return super().score(predictions, labels.reshape(-1))

    def expected_initial_loss(self):
        return self.power
