"""Entity embeddings for a chain's takings (Guo and Berkhahn's Rossmann entry): log target, days in order.

data: store_sales

[data]
label = "Sales"
time = "Date"
features = ["Store", "DayOfWeek", "Month", "StoreType", "CompetitionDistance", "Promo", "StateHoliday"]
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-3, weight_decay = 0.02 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CATS = ["Store", "StoreType", "StateHoliday", "Promo", "DayOfWeek", "Month"]


class EntityModel(nn.Module):
    def __init__(self, cardinalities):
        super().__init__()
        sizes = [(c, min(50, (c + 1) // 2)) for c in cardinalities]
        self.embeds = nn.ModuleList([nn.Embedding(c, s) for c, s in sizes])
        for table in self.embeds:
            nn.init.normal_(table.weight, std=0.1)
        n = sum(s for _, s in sizes) + 1
        self.layers = nn.Sequential(nn.Linear(n, 100), nn.ReLU(), nn.Dropout(0.02), nn.Linear(100, 50), nn.ReLU())
        self.out = nn.Linear(50, 1)

    def forward(self, x_cat, x_cont):
        x = torch.cat([e(x_cat[:, i]) for i, e in enumerate(self.embeds)] + [x_cont], 1)
        return self.out(self.layers(x))


class RossmannSales(Task):
    kind = "regression"
    metrics = directions_of("mape", "rmse", "r2")

    def fit(self, train):
        df = train.collect()
        log_sales = np.log(df["Sales"].to_numpy())
        far = np.log1p(df["CompetitionDistance"].to_numpy())
        self.fitted = {
            "levels": {c: sorted(df[c].unique().to_list()) for c in CATS},
            "far": [float(far.mean()), float(far.std())],
            "sales": [float(log_sales.mean()), float(log_sales.std())],
        }

    def encode(self, rows):
        codes = []
        for c in CATS:
            index = {v: i + 1 for i, v in enumerate(self.fitted["levels"][c])}
            codes.append([index.get(v, 0) for v in rows[c].to_list()])
        mean, std = self.fitted["far"]
        far = (np.log1p(rows["CompetitionDistance"].to_numpy()) - mean) / std
        batch = {
            "x_cat": torch.tensor(codes).T.contiguous(),
            "x_cont": torch.tensor(far[:, None], dtype=torch.float32),
        }
        if "Sales" in rows.columns:
            batch[LABEL] = torch.tensor(rows["Sales"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return EntityModel([len(self.fitted["levels"][c]) + 1 for c in CATS])

    def losses(self, output, batch):
        mean, std = self.fitted["sales"]
        target = (batch[LABEL].log() - mean) / std
        return (output.squeeze(1) - target) ** 2

    def predict(self, output):
        mean, std = self.fitted["sales"]
        return (output.squeeze(1) * std + mean).exp()
