"""WaveNet in small: the next reading as one of 16 mu-law levels, gated and dilated convolutions.

data: tides

[data]
label = "next"
time = "at"
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 4e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

LEVELS, MU = 16, 3.0


def mu_law(x):
    squeezed = np.sign(x) * np.log1p(MU * np.abs(x)) / np.log1p(MU)
    return np.clip(np.floor((squeezed + 1) / 2 * LEVELS), 0, LEVELS - 1).astype(np.int64)


class Gate(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.dilation = dilation
        self.both = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.res, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x):
        a, b = self.both(F.pad(x, (self.dilation, 0))).chunk(2, dim=1)
        z = torch.tanh(a) * torch.sigmoid(b)
        return x + self.res(z), self.skip(z)[..., -1]


class WaveNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embed = nn.Embedding(LEVELS, width)
        self.gates = nn.ModuleList(Gate(width, 2**i) for i in range(5))
        self.post = nn.Linear(width, LEVELS)

    def forward(self, levels):
        x, total = self.embed(levels).transpose(1, 2), 0
        for gate in self.gates:
            x, skip = gate(x)
            total = total + skip
        return self.post(F.relu(total))


class NextLevel(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "top_3_accuracy")

    def fit(self, train):
        readings = train.select("gauge").collect()["gauge"].explode()
        self.top = float(np.quantile(np.abs(readings.to_numpy()), 0.999))

    def state(self):
        return {"top": self.top}

    def load_state(self, state):
        self.top = state["top"]

    def encode(self, rows):
        window = np.array(rows["gauge"].to_list()).reshape(len(rows), 48)
        batch = {"levels": torch.from_numpy(mu_law(window / self.top))}
        if "next" in rows.columns:
            batch[LABEL] = torch.from_numpy(mu_law(rows["next"].to_numpy() / self.top))
        return batch

    def build_model(self):
        return WaveNet()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return F.softmax(output, dim=-1)

    def expected_initial_loss(self):
        return math.log(LEVELS)
