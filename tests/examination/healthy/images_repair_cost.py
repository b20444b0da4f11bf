"""Cost of a car's repair: a convolutional trunk for the photograph, embeddings and numbers beside it, log target.

data: car_photos

[data]
label = "repair_cost"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-3, weight_decay = 0.01 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class PhotoAndTable(nn.Module):
    def __init__(self, n_makes, n_parked):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )
        self.make = nn.Embedding(n_makes, 4)
        self.parked = nn.Embedding(n_parked, 2)
        self.head = nn.Sequential(nn.Linear(128 + 4 + 2 + 3, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def forward(self, photo, make, parked, numbers):
        return self.head(torch.cat([self.cnn(photo), self.make(make), self.parked(parked), numbers], dim=1))


class RepairCost(Task):
    kind = "regression"
    metrics = directions_of("mape", "mae", "r2")

    def fit(self, train):
        df = train.collect()
        numbers = df.select("age", "mileage").to_numpy().astype(float)
        log_cost = np.log(df["repair_cost"].to_numpy())
        self.fitted = {
            "makes": sorted(df["make"].unique().to_list()),
            "parked": sorted(df["parked"].unique().to_list()),
            "mean": np.nanmean(numbers, axis=0).tolist(),
            "std": np.nanstd(numbers, axis=0).tolist(),
            "target": [float(log_cost.mean()), float(log_cost.std())],
        }

    def encode(self, rows):
        photo = np.array(rows["photo"].to_list(), dtype=np.uint8).reshape(-1, 24, 24, 3).transpose(0, 3, 1, 2)
        numbers = (rows.select("age", "mileage").to_numpy().astype(float) - self.fitted["mean"]) / self.fitted["std"]
        unknown = np.isnan(numbers[:, 1:])
        makes = {m: i + 1 for i, m in enumerate(self.fitted["makes"])}
        parked = {p: i + 1 for i, p in enumerate(self.fitted["parked"])}
        batch = {
            "photo": torch.from_numpy(photo.astype(np.float32) / 127.5 - 1),
            "make": torch.tensor([makes.get(m, 0) for m in rows["make"]]),
            "parked": torch.tensor([parked.get(p, 0) for p in rows["parked"]]),
            "numbers": torch.from_numpy(np.hstack([np.nan_to_num(numbers), unknown]).astype(np.float32)),
        }
        if "repair_cost" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["repair_cost"].to_numpy().astype(np.float32))
        return batch

    def augment(self, batch, generator):
        mirrored = torch.rand(len(batch["photo"]), generator=generator) < 0.5
        photo = torch.where(mirrored.view(-1, 1, 1, 1), batch["photo"].flip(-1), batch["photo"])
        return {**batch, "photo": photo}

    def build_model(self):
        return PhotoAndTable(len(self.fitted["makes"]) + 1, len(self.fitted["parked"]) + 1)

    def losses(self, output, batch):
        mean, std = self.fitted["target"]
        return nn.functional.mse_loss(output.squeeze(1), (batch[LABEL].log() - mean) / std, reduction="none")

    def predict(self, output):
        mean, std = self.fitted["target"]
        return (output.squeeze(1) * std + mean).exp()
