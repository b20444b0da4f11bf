"""Rare faults of boilers; missing readings stay NaN until the model puts a learned value in their place.

data: boilers

[data]
label = "fault"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Boiler(nn.Module):
    def __init__(self, n, prior):
        super().__init__()
        self.absent = nn.Parameter(torch.zeros(n))
        self.register_buffer("prior", torch.tensor(prior))
        self.net = nn.Sequential(nn.Linear(2 * n, 40), nn.ELU(), nn.Linear(40, 40), nn.ELU(), nn.Linear(40, 1))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, readings):
        missing = torch.isnan(readings)
        filled = torch.where(missing, self.absent, readings)
        return self.net(torch.cat([filled, missing.to(filled.dtype)], dim=1)).squeeze(1) + self.prior


class BoilerFaults(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def fit(self, train):
        df = train.collect().to_pandas()
        names = [c for c in df if c.startswith("sensor_")]
        rate = df["fault"].mean()
        self.fitted = {
            "names": names,
            "median": df[names].median().tolist(),
            "iqr": (df[names].quantile(0.75) - df[names].quantile(0.25)).tolist(),
            "rate": float(rate),
        }

    def encode(self, rows):
        x = rows.to_pandas()[self.fitted["names"]].astype(float).to_numpy()
        x = (x - self.fitted["median"]) / self.fitted["iqr"]
        batch = {"readings": torch.from_numpy(x.astype(np.float32))}
        if "fault" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["fault"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        rate = self.fitted["rate"]
        return Boiler(len(self.fitted["names"]), float(np.log(rate / (1 - rate))))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def expected_initial_loss(self):
        p = self.fitted["rate"]
        return float(-p * np.log(p) - (1 - p) * np.log(1 - p))
