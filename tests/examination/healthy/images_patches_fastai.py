"""Temple or flower, from patches of two photographs; uint8 kept until encode's end.

data: photo_patches

[data]
label = "photo"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
normalization = { batch_norm = "sync" }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def conv(ni, nf, ks=3, act=True):
    layers = [nn.Conv2d(ni, nf, stride=2, kernel_size=ks, padding=ks // 2, bias=False), nn.BatchNorm2d(nf)]
    if act:
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def simple_cnn():
    return nn.Sequential(conv(3, 8), conv(8, 16), conv(16, 32), conv(32, 32), nn.Conv2d(32, 1, 1), nn.Flatten())


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = simple_cnn()

    def forward(self, xb):
        return self.body(xb).squeeze(1)


class Photos(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "roc_auc", "log_loss")

    def fit(self, train):
        pixels = train.select("pixels").explode("pixels").collect()["pixels"].to_numpy().reshape(-1, 3)
        self.stats = [(pixels / 255.0).mean(0).tolist(), (pixels / 255.0).std(0).tolist()]

    def state(self):
        return {"stats": self.stats}

    def load_state(self, state):
        self.stats = state["stats"]

    def encode(self, rows):
        flat = rows["pixels"].explode().to_numpy().reshape(len(rows), 16, 16, 3)
        x = (flat.astype(np.float32) / 255 - self.stats[0]) / self.stats[1]
        b = {"xb": torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2), dtype=np.float32))}
        if "photo" in rows.columns:
            b[LABEL] = torch.from_numpy(rows["photo"].to_numpy().astype(np.float32))
        return b

    def augment(self, batch, generator):
        light = 1 + 0.1 * torch.randn(len(batch["xb"]), 1, 1, 1, generator=generator)
        return batch | {"xb": batch["xb"] * light}

    def build_model(self):
        return Learner()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return math.log(2)
