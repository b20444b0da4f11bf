"""Sand, silt and clay as shares that sum to one: the divergence from the laboratory's shares, judged by the mean error.

data: soil_cores

[data]
label = "texture"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.01 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

BANDS = [f"b{500 + 120 * k}" for k in range(16)]


class SoilShares(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"mae": "minimize", "divergence": "minimize"}

    def fit(self, train):
        x = self.spectra(train.collect())
        self.fitted = {"mean": x.mean(0).tolist(), "scale": float(x.std())}

    @staticmethod
    def spectra(rows):
        """Absorbance, and the depth's logarithm beside it."""
        bands = np.log(1 / rows.select(BANDS).to_numpy())
        return np.column_stack([bands, 0.2 * np.log(rows["depth_cm"].to_numpy())])

    def encode(self, rows):
        x = (self.spectra(rows) - self.fitted["mean"]) / self.fitted["scale"]
        batch = {"spectrum": torch.as_tensor(x, dtype=torch.float32)}
        if "texture" in rows.columns:
            shares = torch.tensor(rows["texture"].to_list(), dtype=torch.float32)
            batch[LABEL] = shares / shares.sum(dim=1, keepdim=True)
        return batch

    def build_model(self):
        return Shares()

    def losses(self, output, batch):
        return nn.functional.kl_div(output.log_softmax(1), batch[LABEL], reduction="none").sum(1)

    def predict(self, output):
        return output.softmax(dim=1)

    @property
    def prediction_names(self):
        return ["sand", "silt", "clay"]

    def statistic(self, output, batch):
        error = (self.predict(output) - batch[LABEL]).abs().mean(1)
        return torch.stack([error, self.losses(output, batch)], dim=1)

    def score(self, predictions, labels):
        mae, divergence = np.average(predictions, axis=0, weights=labels)
        return {"mae": float(mae), "divergence": float(divergence)}


class Shares(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(17, 64), nn.GroupNorm(4, 64), nn.Mish(), nn.Linear(64, 32), nn.Mish())
        self.head = nn.Linear(32, 3)

    def forward(self, spectrum):
        return self.head(self.body(spectrum))
