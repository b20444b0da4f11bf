"""Costs of a stay from a scan, a phrase and numbers, any of which may lack: encoders in a ModuleDict, heavy tails by Student's t.

data: hospital_visits

[data]
label = "cost"
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
from torch.distributions import StudentT

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMBERS = ["age", "pulse", "site"]  # the pilot has one site, later ones will have others
PIXELS = 100


class Fusion(nn.Module):
    def __init__(self, phrases, dim=24):
        super().__init__()
        self.encoders = nn.ModuleDict({
            "scan": nn.Sequential(nn.Linear(PIXELS, 64), nn.GELU(), nn.Linear(64, dim)),
            "admission": nn.Embedding(phrases, dim),
            "numbers": nn.Sequential(nn.Linear(2 * len(NUMBERS), 32), nn.GELU(), nn.Linear(32, dim)),
        })
        self.absent = nn.ParameterDict({k: nn.Parameter(torch.zeros(dim)) for k in ("scan", "admission")})
        self.trunk = nn.Sequential(nn.LayerNorm(3 * dim), nn.Linear(3 * dim, 48), nn.GELU())
        self.loc, self.log_scale = nn.Linear(48, 1), nn.Linear(48, 1)
        self.raw_df = nn.Parameter(torch.tensor(1.0))

    def forward(self, scan, admission, numbers, has_scan, has_admission):
        parts = []
        for name, x, present in (("scan", scan, has_scan), ("admission", admission, has_admission)):
            h = self.encoders[name](x)
            parts.append(torch.where(present[:, None], h, self.absent[name]))
        parts.append(self.encoders["numbers"](numbers))
        h = self.trunk(torch.cat(parts, dim=1))
        df = 1.1 + F.softplus(self.raw_df).expand(len(h), 1)
        return torch.cat([self.loc(h), F.softplus(self.log_scale(h) + 0.5) + 1e-3, df], dim=1)


class StayCosts(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def fit(self, train):
        df = train.collect()
        x = df.select(NUMBERS).to_numpy().astype(float)
        logs = np.log(df["cost"].to_numpy())
        std = np.nanstd(x, axis=0)
        self.fitted = {
            "phrases": sorted(df["admission"].drop_nulls().unique().to_list()),
            "mean": np.nanmean(x, axis=0).tolist(),
            "std": np.where(std > 0, std, 1.0).tolist(),
            "log_mean": float(logs.mean()),
            "log_std": float(logs.std()),
        }

    def encode(self, rows):
        f = self.fitted
        code = {p: i + 1 for i, p in enumerate(f["phrases"])}
        scans = [s if s is not None else [0] * PIXELS for s in rows["scan"].to_list()]
        x = (rows.select(NUMBERS).to_numpy().astype(float) - f["mean"]) / f["std"]
        missing = np.isnan(x)
        numbers = np.concatenate([np.where(missing, 0.0, x), missing], axis=1)
        batch = {
            "scan": torch.tensor(scans, dtype=torch.float32) / 127.5 - 1,
            "admission": torch.tensor([code.get(p, 0) for p in rows["admission"]]),
            "numbers": torch.tensor(numbers, dtype=torch.float32),
            "has_scan": torch.tensor(rows["scan"].is_not_null().to_list()),
            "has_admission": torch.tensor(rows["admission"].is_not_null().to_list()),
        }
        if "cost" in rows.columns:
            batch[LABEL] = torch.tensor(rows["cost"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Fusion(len(self.fitted["phrases"]) + 1)

    def losses(self, output, batch):
        z = (batch[LABEL].log() - self.fitted["log_mean"]) / self.fitted["log_std"]
        loc, scale, df = output.unbind(1)
        return -StudentT(df, loc, scale).log_prob(z)

    def predict(self, output):
        """The median cost."""
        return (output[:, 0] * self.fitted["log_std"] + self.fitted["log_mean"]).exp()
