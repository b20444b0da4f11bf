"""Infections on hospital wards: an R user's Poisson GLM with offset, made a small network.

data: ward_months

[data]
label = "infections"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

# glm(infections ~ ward + month + nurses_per_bed + catheter_share + offset(log(bed_days)), family = poisson)


class WardRates(nn.Module):
    def __init__(self, n_wards):
        super().__init__()
        self.ward = nn.Embedding(n_wards, 4)
        self.eta = nn.Sequential(nn.Linear(4 + 4, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, ward, z, offset):
        eta = self.eta(torch.cat([self.ward(ward), z], dim=1)).squeeze(1)
        return eta + offset


class Infections(Task):
    kind = "regression"
    metrics = {"deviance": "minimize", **directions_of("mae")}

    def fit(self, train):
        d = train.collect()
        z = d.select("nurses_per_bed", "catheter_share").to_numpy()
        self.fitted = dict(
            wards=d["ward"].unique().sort().to_list(),
            center=z.mean(axis=0).tolist(),
            scale=z.std(axis=0).tolist(),
            base_rate=d["infections"].sum() / d["bed_days"].sum(),
        )

    def encode(self, d):
        par = self.fitted
        z = (d.select("nurses_per_bed", "catheter_share").to_numpy() - par["center"]) / par["scale"]
        season = 2 * np.pi * (d["month"].to_numpy() - 1) / 12
        z = np.column_stack([z, np.cos(season), np.sin(season)])
        level = {w: i + 1 for i, w in enumerate(par["wards"])}
        out = {
            "ward": torch.tensor([level.get(w, 0) for w in d["ward"]]),
            "z": torch.tensor(z, dtype=torch.float32),
            "offset": torch.tensor(np.log(d["bed_days"].to_numpy() * par["base_rate"]), dtype=torch.float32),
        }
        if "infections" in d.columns:
            out[LABEL] = torch.tensor(d["infections"].to_numpy(), dtype=torch.float32)
        return out

    def build_model(self):
        return WardRates(len(self.fitted["wards"]) + 1)

    def losses(self, output, batch):
        return F.poisson_nll_loss(output, batch[LABEL], log_input=True, full=True, reduction="none")

    def predict(self, output):
        return output.exp()

    def score(self, predictions, labels):
        y, mu = labels, predictions
        d = 2 * (y * np.log(np.maximum(y, 1e-12) / mu) - (y - mu))
        return super().score(predictions, labels) | {"deviance": float(d.mean())}
