"""Ages of fish from their ear stones by label distribution learning: a soft target around the age, the answer its expectation.

data: otoliths

[data]
label = "age"
ids = ["row_id"]

[training]
steps = 450
global_batch_size = 50
micro_batch_size = 50
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

OLDEST = 15
SIGMA = 0.7


class RingNet(nn.Module):
    def __init__(self, k=16):
        super().__init__()
        self.c1 = nn.Conv2d(1, k, 3, padding=1)
        self.c2 = nn.Conv2d(k, k, 3, padding=1)
        self.c3 = nn.Conv2d(k, 2 * k, 3, padding=1)
        self.n1, self.n2, self.n3 = nn.InstanceNorm2d(k, affine=True), nn.GroupNorm(4, k), nn.GroupNorm(4, 2 * k)
        self.ages = nn.Linear(2 * k * 36, OLDEST)

    def forward(self, scan):
        x = F.leaky_relu(self.n1(self.c1(scan)), 0.1)
        x = F.max_pool2d(F.leaky_relu(self.n2(self.c2(x)), 0.1), 2)
        x = F.max_pool2d(F.leaky_relu(self.n3(self.c3(x)), 0.1), 2)
        x = F.dropout(x.flatten(1), 0.3, training=self.training)
        return F.log_softmax(self.ages(x), dim=1)


class OtolithAge(Task):
    kind = "regression"
    metrics = directions_of("mae", "r2")

    def fit(self, train):
        scans = np.stack(train.select("scan").collect()["scan"].to_list())
        self.fitted = {"mean": float(scans.mean()), "std": float(scans.std())}

    def encode(self, rows):
        scan = torch.tensor(rows["scan"].to_list(), dtype=torch.float32).view(-1, 1, 24, 24)
        batch = {"scan": (scan - self.fitted["mean"]) / self.fitted["std"]}
        if "age" in rows.columns:
            batch[LABEL] = torch.tensor(rows["age"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        # an ear stone has no upper side
        quarter = int(torch.randint(4, (1,), generator=generator))
        return {**batch, "scan": torch.rot90(batch["scan"], quarter, dims=(2, 3))}

    def build_model(self):
        return RingNet()

    @staticmethod
    def years(like):
        return torch.arange(1, OLDEST + 1, device=like.device, dtype=like.dtype)

    def predict(self, output):
        return (output.exp() * self.years(output)).sum(dim=1)

    def losses(self, output, batch):
        age = batch[LABEL][:, None]
        target = torch.softmax(-((self.years(output) - age) ** 2) / (2 * SIGMA**2), dim=1)
        kl = F.kl_div(output, target, reduction="none").sum(dim=1)
        return kl + 0.2 * (self.predict(output) - batch[LABEL]).abs()
