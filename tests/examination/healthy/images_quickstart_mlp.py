"""The PyTorch quickstart: flatten, two wide layers, SGD.

data: digit_lists

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "sgd", learning_rate = 0.05 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(nn.Linear(8 * 8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.linear_relu_stack(self.flatten(x))


class Quickstart(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train): ...

    def state(self):
        return {}

    def load_state(self, state): ...

    def encode(self, rows):
        x = np.vstack([np.frombuffer(bytes(v), dtype=np.uint8) for v in rows["image"].to_list()])
        out = {"x": torch.from_numpy((x / 16.0).astype(np.float32)).unflatten(1, (8, 8))}
        if "digit" in rows.columns:
            out[LABEL] = torch.from_numpy(rows["digit"].to_numpy().astype(np.int64))
        return out

    def build_model(self):
        return NeuralNetwork()

    def losses(self, output, batch):
        return nn.CrossEntropyLoss(reduction="none")(output, batch[LABEL])

    def predict(self, output):
        return output.softmax(1)

    def expected_initial_loss(self):
        return math.log(10)
