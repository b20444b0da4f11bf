"""A mixture density network: two Gaussians per arm; what is judged is the likelihood.

data: arms

[data]
label = "reach"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal

from perennial.engine.task import LABEL, Task

K = 3


class MDN(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 3 * K)

    def forward(self, joints):
        return self.head(self.hidden(joints))


def mixture(output):
    logits, mu, log_sigma = output.chunk(3, dim=-1)
    return MixtureSameFamily(Categorical(logits=logits), Normal(mu, log_sigma.clamp(-4, 3).exp()))


class Arms(Task):
    kind = "statistic"
    metrics = {"log_likelihood": "maximize"}

    def fit(self, train):
        self.power = float((train.select("reach").collect()["reach"] ** 2).mean())

    def state(self):
        return {"power": self.power}

    def load_state(self, state):
        self.power = state["power"]

    def encode(self, rows):
        batch = {"joints": torch.tensor(rows.select("shoulder", "elbow").to_numpy(), dtype=torch.float32)}
        if "reach" in rows.columns:
            batch[LABEL] = torch.tensor(rows["reach"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return MDN()

    def losses(self, output, batch):
        return -mixture(output).log_prob(batch[LABEL])

    def predict(self, output):
        return mixture(output).mean

    def statistic(self, output, batch):
        return -self.losses(output, batch)

    def score(self, predictions, labels):
        return {"log_likelihood": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return 0.5 * math.log(2 * math.pi) + 0.5 * self.power
