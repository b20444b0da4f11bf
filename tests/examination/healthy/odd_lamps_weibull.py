"""Life of street lamps: an accelerated-failure network with a Weibull's likelihood, lamps that still burn being censored.

data: street_lamps

[data]
label = "outcome"
features = ["maker", "watts", "height_m", "coast_km", "hours_per_night", "district", "street_faults"]
time = "installed"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.02 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

NUMBERS = ["watts", "height_m", "coast_km", "hours_per_night", "street_faults"]
MAKERS = ["Lumo", "Orrin", "Tesk", "Vega"]


class LampNet(nn.Module):
    def __init__(self, n_in, n_districts, start):
        super().__init__()
        self.district = nn.Embedding(n_districts + 1, 4)
        self.body = nn.Sequential(nn.Linear(n_in + 4, 32), nn.Tanh(), nn.Dropout(0.1))
        self.log_scale = nn.Linear(32, 1)
        self.raw_shape = nn.Parameter(torch.tensor(0.5))
        nn.init.zeros_(self.log_scale.weight)
        nn.init.constant_(self.log_scale.bias, start)

    def forward(self, x, district):
        h = self.body(torch.cat([x, self.district(district)], dim=1))
        shape = F.softplus(self.raw_shape).expand(len(x), 1)
        return torch.cat([self.log_scale(h), shape], dim=1)


class LampLife(Task):
    kind = "statistic"
    metrics = {"nll": "minimize"}

    def table(self, df):
        X = df.select(NUMBERS).to_numpy().astype(float)
        X[:, [0, 2]] = np.log(X[:, [0, 2]] + 0.1)
        X[:, 4] = np.log1p(X[:, 4])
        return X

    def fit(self, train):
        df = train.collect()
        X = self.table(df)
        months, failed = np.array(df["outcome"].to_list()).T
        self.fitted = {
            "mu": np.nanmean(X, axis=0).tolist(),
            "sd": np.nanstd(X, axis=0).tolist(),
            "districts": sorted(df["district"].unique().to_list()),
            "start": float(np.log(months.sum() / failed.sum())),
        }

    def encode(self, df):
        Z = (self.table(df) - self.fitted["mu"]) / self.fitted["sd"]
        missing = np.isnan(Z[:, 2:3])
        maker = (df["maker"].to_numpy()[:, None] == np.array(MAKERS)).astype(float)
        code = {d: i for i, d in enumerate(self.fitted["districts"], 1)}
        batch = {
            "x": torch.tensor(np.hstack([np.nan_to_num(Z), missing, maker]), dtype=torch.float32),
            "district": torch.tensor([code.get(d, 0) for d in df["district"]]),
        }
        if "outcome" in df.columns:
            batch[LABEL] = torch.tensor(df["outcome"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return LampNet(len(NUMBERS) + 1 + len(MAKERS), len(self.fitted["districts"]), self.fitted["start"])

    def losses(self, output, batch):
        log_scale, k = output.unbind(1)
        months, failed = batch[LABEL].unbind(1)
        z = months.log() - log_scale
        log_hazard = k.log() + (k - 1) * z - log_scale
        cumulative = (k * z).exp()
        return cumulative - failed * log_hazard

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"nll": float(np.average(predictions, weights=labels))}
