"""A denoising autoencoder: Gaussian noise in augment, clean pixels as the label.

data: digit_copies

[data]
label = "target"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task


class ConvDAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1 = nn.Conv2d(1, 16, 3, padding=1)
        self.enc2 = nn.Conv2d(16, 8, 3, stride=2, padding=1)
        self.dec1 = nn.ConvTranspose2d(8, 16, 2, stride=2)
        self.dec2 = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, noisy):
        x = F.relu(self.enc1(noisy))
        x = F.relu(self.enc2(x))
        x = F.relu(self.dec1(x))
        return self.dec2(x)


class Denoise(Task):
    kind = "statistic"
    metrics = {"psnr": "maximize", "mse": "minimize"}

    def fit(self, train):
        x = np.array(train.select("image").collect()["image"].to_list()) / 16
        self.power = float((x**2).mean())

    def state(self):
        return {"power": self.power}

    def load_state(self, state):
        self.power = state["power"]

    def encode(self, rows):
        batch = {"noisy": torch.tensor(rows["image"].to_list()).float().div(16).view(-1, 1, 8, 8)}
        if "target" in rows.columns:
            batch[LABEL] = torch.tensor(rows["target"].to_list()).float().div(16).view(-1, 1, 8, 8)
        return batch

    def augment(self, batch, generator):
        noise = torch.randn(batch["noisy"].shape, generator=generator)
        return {**batch, "noisy": batch["noisy"] + 0.2 * noise}

    def build_model(self):
        return ConvDAE()

    def losses(self, output, batch):
        return F.mse_loss(output, batch[LABEL], reduction="none").flatten(1).mean(1)

    def predict(self, output):
        return output.clamp(0, 1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        mse = float(np.average(predictions.ravel(), weights=labels))
        return {"psnr": -10 * np.log10(mse + 1e-12), "mse": mse}

    def expected_initial_loss(self):
        return self.power
