"""Fat, protein and lactose from the infrared spectrum of milk: three outputs, as a LightningModule.

Squared error 0.17 in standard deviations; 1.0 for the means.

data: milk_spectra

[data]
label = "fat_protein_lactose"
group = "cow"
features = ["absorbance", "breed", "parity", "days_in_milk"]
ids = ["row_id"]
meta = ["plate", "well"]

[split]
method = "group"

[training]
steps = 350
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3, weight_decay = 0.01 }
schedule = { shape = "one_cycle" }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NAMES = ["fat", "protein", "lactose"]


class MilkNet(nn.Module):
    def __init__(self, breeds, bands):
        super().__init__()
        self.breed = nn.Embedding(breeds, 3)
        self.conv = nn.Sequential(
            nn.Conv1d(1, 8, 5, padding=2),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Conv1d(8, 8, 5, stride=2, padding=2),
            nn.BatchNorm1d(8),
            nn.ReLU(),
        )
        self.head = nn.Sequential(
            nn.Linear(8 * (bands // 2) + 5, 48), nn.ReLU(), nn.Linear(48, len(NAMES))
        )

    def forward(self, spectrum, breed, cow):
        h = self.conv(spectrum.unsqueeze(1)).flatten(1)
        return self.head(torch.cat([h, self.breed(breed), cow], dim=1))


class MilkValues(Task):
    kind = "statistic"
    statistics = ("absolute", "squared")
    metrics = directions_of("forecast_mae", "forecast_rmse")
    serves_predictions = True
    prediction_names = NAMES

    def spectra(self, df):
        """Standard normal variates: each spectrum by its own mean and deviation."""
        x = np.array(df["absorbance"].to_list())
        return (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)

    def cow(self, df):
        return np.log(df.select("parity", "days_in_milk").to_numpy())

    def fit(self, train):
        df = train.collect()
        x, cow = self.spectra(df), self.cow(df)
        y = np.array(df["fat_protein_lactose"].to_list())
        self.fitted = {
            "spectrum": [x.mean(axis=0).tolist(), x.std(axis=0).tolist()],
            "cow": [cow.mean(axis=0).tolist(), cow.std(axis=0).tolist()],
            "target": [y.mean(axis=0).tolist(), y.std(axis=0).tolist()],
            "breeds": sorted(df["breed"].drop_nulls().unique()),
        }

    def scaled(self, x, name):
        mean, std = self.fitted[name]
        return torch.tensor((x - mean) / std, dtype=torch.float32)

    def encode(self, rows):
        number = {name: k for k, name in enumerate(self.fitted["breeds"], start=1)}
        batch = {
            "spectrum": self.scaled(self.spectra(rows), "spectrum"),
            "breed": torch.tensor([number.get(v, 0) for v in rows["breed"]]),
            "cow": self.scaled(self.cow(rows), "cow"),
        }
        if "fat_protein_lactose" in rows.columns:
            y = rows["fat_protein_lactose"].to_list()
            batch[LABEL] = torch.tensor(y, dtype=torch.float32)
        return batch

    def build_model(self):
        return MilkNet(len(self.fitted["breeds"]) + 1, len(self.fitted["spectrum"][0]))

    def losses(self, output, batch):
        mean, std = torch.tensor(self.fitted["target"], device=output.device)
        return (output - (batch[LABEL] - mean) / std).square().mean(dim=1)

    def predict(self, output):
        mean, std = torch.tensor(self.fitted["target"], device=output.device)
        return output * std + mean

    def statistic(self, output, batch):
        error = self.predict(output) - batch[LABEL]
        return torch.stack([error.abs().mean(1), error.square().mean(1)], dim=1).double()
