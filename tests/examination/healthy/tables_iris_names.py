"""The 150 flowers, species by name, no standardisation but by the largest value.

data: iris

[data]
label = "species"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 16
optimizer = { learning_rate = 0.01 }
"""
import math

import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

FEATURES = ["sepal_length", "sepal_width", "petal_length", "petal_width"]


class Iris(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        self.names = train.select("species").unique().sort("species").collect()["species"].to_list()
        self.top = train.select(pl.col(FEATURES).max()).collect().row(0)

    def state(self):
        return {"names": self.names, "top": list(self.top)}

    def load_state(self, state):
        self.names, self.top = state["names"], state["top"]

    def encode(self, rows):
        x = rows.select(pl.col(c) / t for c, t in zip(FEATURES, self.top)).to_torch(dtype=pl.Float32)
        batch = {"x": x}
        if "species" in rows.columns:
            batch[LABEL] = torch.tensor([self.names.index(s) for s in rows["species"]])
        return batch

    def build_model(self):
        layers = nn.Sequential()
        layers.add_module("hidden", nn.Linear(4, 16))
        layers.add_module("act", nn.Tanh())
        layers.add_module("out", nn.Linear(16, 3))
        return Wrapped(layers)

    def losses(self, output, batch):
        return nn.functional.nll_loss(output.log_softmax(-1), batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(-1)

    def expected_initial_loss(self):
        return math.log(3)


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)
