"""Self-normalising network: LeCun init, SELU, alpha dropout, Huber loss.

data: friedman

[data]
label = "y"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def lecun(m):
    if isinstance(m, nn.Linear):
        nn.init.kaiming_normal_(m.weight, mode="fan_in", nonlinearity="linear")
        nn.init.zeros_(m.bias)


class Friedman(Task):
    kind = "regression"
    metrics = directions_of("rmse", "r2")

    def fit(self, train):
        y = train.select("y").collect()["y"].to_numpy()
        self.loc, self.scale = float(y.mean()), float(y.std())
        z = np.abs((y - self.loc) / self.scale)
        self.first = float(np.where(z < 1, 0.5 * z * z, z - 0.5).mean())

    def state(self):
        return {"loc": self.loc, "scale": self.scale, "first": self.first}

    def load_state(self, s):
        self.loc, self.scale, self.first = s["loc"], s["scale"], s["first"]

    def encode(self, rows):
        x = rows.select([f"x{i}" for i in range(8)]).to_numpy()
        out = {"x": torch.tensor((x - 0.5) / 0.2887, dtype=torch.float32)}
        if "y" in rows.columns:
            out[LABEL] = torch.tensor(rows["y"].to_numpy(), dtype=torch.float32)
        return out

    def build_model(self):
        net = SNN()
        net.apply(lecun)
        net.body[-1].weight.data *= 0.1
        return net

    def losses(self, output, batch):
        return nn.functional.smooth_l1_loss(output, (batch[LABEL] - self.loc) / self.scale, reduction="none")

    def predict(self, output):
        return output * self.scale + self.loc

    def expected_initial_loss(self):
        return self.first


class SNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, 64), nn.SELU(), nn.AlphaDropout(0.02), nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 1),
        )

    def forward(self, x):
        return self.body(x).squeeze(-1)
