"""An autoencoder: the picture's own copy is the label.

data: digit_copies

[data]
label = "target"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class AutoEncoder(nn.Module):
    def __init__(self, code=10):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(True), nn.Linear(48, code))
        self.decoder = nn.Sequential(nn.Linear(code, 48), nn.ReLU(True), nn.Linear(48, 64), nn.Sigmoid())

    def forward(self, image):
        return self.decoder(self.encoder(image))


class DigitCompression(Task):
    kind = "statistic"
    metrics = {"mse": "minimize"}

    def fit(self, train):
        x = np.array(train.select("image").collect()["image"].to_list()) / 16
        self.at_half = float(((x - 0.5) ** 2).mean())

    def state(self):
        return {"at_half": self.at_half}

    def load_state(self, state):
        self.at_half = state["at_half"]

    def encode(self, rows):
        to_float = lambda column: torch.tensor(rows[column].to_list(), dtype=torch.float32) / 16
        batch = {"image": to_float("image")}
        if "target" in rows.columns:
            batch[LABEL] = to_float("target")
        return batch

    def build_model(self):
        return AutoEncoder()

    def losses(self, output, batch):
        return ((output - batch[LABEL]) ** 2).mean(dim=1)

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"mse": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return self.at_half
