"""How full a car park is: a share, by cross-entropy on its logit; embeddings for park, hour and weekday, BatchNorm over all.

data: car_parks

[data]
label = "share"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 0.01 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIZES = {"park": 12, "hour": 24, "weekday": 7}


class Fullness(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(size, 6) for name, size in SIZES.items()})
        self.norm = nn.BatchNorm1d(19)
        self.layers = nn.Sequential(nn.Linear(19, 32), nn.Mish(), nn.Linear(32, 1))

    def forward(self, rain, **codes):
        x = torch.cat([self.tables[name](code) for name, code in codes.items()] + [rain], 1)
        return self.layers(self.norm(x))


class CarParks(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def encode(self, rows):
        batch = {name: rows[name].to_torch().long() for name in SIZES}
        batch["rain"] = rows["rain"].to_torch().float()[:, None]
        if "share" in rows.columns:
            batch[LABEL] = rows["share"].to_torch().float()
        return batch

    def build_model(self):
        return Fullness()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output[:, 0], batch[LABEL], reduction="none")

    def predict(self, output):
        return output[:, 0].sigmoid()
