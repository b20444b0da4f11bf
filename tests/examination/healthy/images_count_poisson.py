"""How many cells: a convolution, a sum over the slide, the Poisson loss.

data: dots

[data]
label = "cells"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class DensityNet(nn.Module):
    """A density per pixel whose sum is the count."""

    def __init__(self, mean_count):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 1, 1)
        nn.init.constant_(self.conv2.bias, math.log(math.expm1(mean_count / 256)))
        nn.init.normal_(self.conv2.weight, std=1e-3)

    def forward(self, slide):
        return F.softplus(self.conv2(F.relu(self.conv1(slide)))).sum((1, 2, 3)).log()


class CellCount(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        y = train.select("cells").collect()["cells"].to_numpy()
        self.mean = float(y.mean())
        self.start = float(self.mean - y.mean() * np.log(self.mean))

    def state(self):
        return {"mean": self.mean, "start": self.start}

    def load_state(self, state):
        self.mean, self.start = state["mean"], state["start"]

    def encode(self, rows):
        slide = np.array(rows["slide"].to_list(), dtype=np.float32).reshape(-1, 1, 16, 16)
        batch = {"slide": torch.from_numpy(slide / 255)}
        if "cells" in rows.columns:
            batch[LABEL] = torch.tensor(rows["cells"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return DensityNet(self.mean)

    def losses(self, output, batch):
        return F.poisson_nll_loss(output, batch[LABEL], log_input=True, reduction="none")

    def predict(self, output):
        return output.exp()

    def expected_initial_loss(self):
        return self.start
