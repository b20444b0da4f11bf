"""Anomalies of heartbeats by an autoencoder, as in the Keras and TensorFlow tutorials: one scale for all readings, mean absolute error.

data: ecg_beats

[data]
label = "target"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class AnomalyDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(60, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 60))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Heartbeats(Task):
    kind = "statistic"
    metrics = {"reconstruction_error": "minimize"}
    reconstructs_inputs = True

    def fit(self, train):
        values = np.array(train.select("ecg").collect()["ecg"].to_list())
        self.fitted = {"mean": float(values.mean()), "std": float(values.std())}

    def scaled(self, values):
        mean, std = self.fitted["mean"], self.fitted["std"]
        return torch.tensor((np.array(values.to_list()) - mean) / std, dtype=torch.float32)

    def encode(self, rows):
        batch = {"x": self.scaled(rows["ecg"])}
        if "target" in rows.columns:
            batch[LABEL] = self.scaled(rows["target"])
        return batch

    def build_model(self):
        return AnomalyDetector()

    def losses(self, output, batch):
        return nn.functional.l1_loss(output, batch[LABEL], reduction="none").mean(1)

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"reconstruction_error": float(np.average(predictions.reshape(-1), weights=labels))}
