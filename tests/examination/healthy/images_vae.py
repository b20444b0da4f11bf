"""The VAE of the PyTorch examples; the code is drawn in training only, the digit is not read.

data: digit_copies

[data]
label = "target"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.task import LABEL, Task


class VAE(nn.Module):
    def __init__(self, latent=8):
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc21 = nn.Linear(64, latent)
        self.fc22 = nn.Linear(64, latent)
        self.fc3 = nn.Linear(latent, 64)
        self.fc4 = nn.Linear(64, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        if not self.training:
            return mu
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        recon = self.fc4(F.relu(self.fc3(z)))
        return torch.cat([recon, mu, logvar], dim=1)


class DigitVAE(Task):
    kind = "statistic"
    metrics = {"negative_elbo": "minimize"}

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def encode(self, rows):
        batch = {"x": torch.tensor(rows["image"].to_list(), dtype=torch.float) / 16}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor(rows[self.columns.label].to_list(), dtype=torch.float) / 16
        return batch

    def build_model(self):
        return VAE()

    def losses(self, output, batch):
        recon, mu, logvar = output.split([64, 8, 8], dim=1)
        bce = F.binary_cross_entropy_with_logits(recon, batch[LABEL], reduction="none").sum(1)
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)
        return bce + kld

    def predict(self, output):
        return output[:, :64].sigmoid()

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"negative_elbo": float(np.average(predictions.squeeze(), weights=labels))}

    def expected_initial_loss(self):
        return 64 * math.log(2)
