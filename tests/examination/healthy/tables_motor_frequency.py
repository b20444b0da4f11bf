"""Claims frequency of motor insurance: a Poisson network with the policy's share of a year as offset.

data: motor_policies

[data]
label = "ClaimNb"
ids = ["row_id"]

[training]
steps = 800
global_batch_size = 512
micro_batch_size = 512
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMERIC = ["VehPower", "VehAge", "DrivAge", "BonusMalus", "LogDensity"]


class ClaimFrequencyNet(nn.Module):
    def __init__(self, n_brands, n_regions, log_rate):
        super().__init__()
        self.brand = nn.Embedding(n_brands, 2)
        self.region = nn.Embedding(n_regions, 2)
        self.hidden = nn.Sequential(
            nn.Linear(len(NUMERIC) + 1 + 4, 20), nn.Tanh(), nn.Linear(20, 15), nn.Tanh(), nn.Linear(15, 10), nn.Tanh()
        )
        self.log_frequency = nn.Linear(10, 1)
        nn.init.zeros_(self.log_frequency.weight)
        nn.init.constant_(self.log_frequency.bias, log_rate)

    def forward(self, numeric, diesel, brand, region, log_exposure):
        x = torch.cat([numeric, diesel, self.brand(brand), self.region(region)], dim=1)
        return self.log_frequency(self.hidden(x)).squeeze(1) + log_exposure


class ClaimFrequency(Task):
    """Schelldorfer and Wuthrich 2019."""

    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def numeric(self, rows):
        columns = [rows[c].to_numpy().astype(float) for c in NUMERIC[:-1]]
        columns[1], columns[2], columns[3] = columns[1].clip(max=20), columns[2].clip(max=90), columns[3].clip(max=150)
        return np.stack([*columns, np.log(rows["Density"].to_numpy())], axis=1)

    def fit(self, train):
        df = train.collect()
        X = self.numeric(df)
        self.fitted = {
            "low": X.min(0).tolist(),
            "high": X.max(0).tolist(),
            "brands": sorted(df["VehBrand"].unique().to_list()),
            "regions": sorted(df["Region"].unique().to_list()),
            "log_rate": float(np.log(df["ClaimNb"].to_numpy().sum() / df["Exposure"].to_numpy().sum())),
        }

    def encode(self, rows):
        low, high = np.array(self.fitted["low"]), np.array(self.fitted["high"])
        numeric = 2 * (self.numeric(rows) - low) / (high - low) - 1  # MinMaxScaler, to [-1, 1]
        brand = {b: i + 1 for i, b in enumerate(self.fitted["brands"])}
        region = {r: i + 1 for i, r in enumerate(self.fitted["regions"])}
        batch = {
            "numeric": torch.tensor(numeric, dtype=torch.float32),
            "diesel": torch.tensor((rows["VehGas"] == "Diesel").to_numpy()[:, None], dtype=torch.float32),
            "brand": torch.tensor([brand.get(b, 0) for b in rows["VehBrand"]]),
            "region": torch.tensor([region.get(r, 0) for r in rows["Region"]]),
            "log_exposure": torch.tensor(np.log(rows["Exposure"].to_numpy()), dtype=torch.float32),
        }
        if "ClaimNb" in rows.columns:
            batch[LABEL] = torch.tensor(rows["ClaimNb"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return ClaimFrequencyNet(len(self.fitted["brands"]) + 1, len(self.fitted["regions"]) + 1, self.fitted["log_rate"])

    def losses(self, output, batch):
        return nn.functional.poisson_nll_loss(output, batch[LABEL], log_input=True, reduction="none")

    def predict(self, output):
        return output.exp()
