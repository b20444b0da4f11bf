"""Mean and variance from one network, GaussianNLLLoss; the mean is what is predicted.

data: noisy_sensor

[data]
label = "reading"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class MeanVar(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean = nn.Linear(64, 1)
        self.raw_var = nn.Linear(64, 1)
        nn.init.zeros_(self.raw_var.weight)
        nn.init.constant_(self.raw_var.bias, 0.5413)

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([self.mean(h), F.softplus(self.raw_var(h)) + 1e-4], dim=1)


class Sensor(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae")

    def fit(self, train):
        df = train.select("reading").collect()
        self.mu, self.sd = df["reading"].mean(), df["reading"].std()

    def state(self):
        return {"mu": self.mu, "sd": self.sd}

    def load_state(self, state):
        self.mu, self.sd = float(state["mu"]), float(state["sd"])

    def encode(self, rows):
        batch = {"x": torch.tensor(rows.select("angle", "wind").to_numpy() / 3.0, dtype=torch.float32)}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor(rows[self.columns.label].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return MeanVar()

    def losses(self, output, batch):
        mean, var = output.unbind(dim=1)
        return F.gaussian_nll_loss(mean, (batch[LABEL] - self.mu) / self.sd, var, reduction="none")

    def predict(self, output):
        return output[:, 0] * self.sd + self.mu

    def expected_initial_loss(self):
        return 0.5
