"""How usual is a particle's reading at its energy? A conditional flow (RealNVP) with masks as buffers, log likelihood in whitened units.

data: detector_hits

[data]
label = "target"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn as nn

from perennial.engine.task import LABEL, Task

D = 4


class Coupling(nn.Module):
    def __init__(self, mask, hidden=32):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(
            nn.Linear(D + 1, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden), nn.LeakyReLU(), nn.Linear(hidden, 2 * D)
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x, context):
        s, t = self.net(torch.cat([x * self.mask, context], dim=1)).chunk(2, dim=1)
        s = torch.tanh(s) * 2 * (1 - self.mask)
        y = x * self.mask + (1 - self.mask) * (x * s.exp() + t)
        return y, s.sum(dim=1)


class RealNVP(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.layers = nn.ModuleList()
        for k in range(depth):
            mask = torch.zeros(D)
            mask[k % 2 :: 2] = 1.0
            if k >= depth // 2:
                mask = torch.tensor([1.0, 1.0, 0.0, 0.0])
                mask = mask if k % 2 else 1 - mask
            self.layers.append(Coupling(mask))

    def forward(self, energy, x):
        log_det = x.new_zeros(len(x))
        for layer in self.layers:
            x, d = layer(x, energy)
            log_det = log_det + d
        log_normal = -0.5 * (x.square().sum(dim=1) + D * math.log(2 * math.pi))
        return log_normal + log_det


class DetectorHits(Task):
    kind = "statistic"
    reconstructs_inputs = True
    metrics = {"nats": "minimize"}

    def fit(self, train):
        x = np.array(train.select("hit").collect()["hit"].to_list())
        self.fitted = {"mean": x.mean(0).tolist(), "std": x.std(0).tolist()}

    def encode(self, rows):
        energy = torch.tensor(np.log(rows["energy"].to_numpy()), dtype=torch.float32)
        x = (np.array(rows["hit"].to_list()) - self.fitted["mean"]) / self.fitted["std"]
        x = torch.tensor(x, dtype=torch.float32)
        batch = {"energy": energy[:, None], "x": x}
        if "target" in rows.columns:
            batch[LABEL] = torch.zeros(len(x))  # a copy of the hit, which the likelihood does not need
        return batch

    def build_model(self):
        return RealNVP()

    def losses(self, output, batch):
        return -output

    def score(self, predictions, labels):
        return {"nats": float(np.average(predictions.ravel(), weights=labels))}
