"""Fraud of card payments, one in seventy: robust scaling, an older system's anomaly score as a feature, plain BCE.

data: terminal_payments

[data]
label = "is_fraud"
time = "paid_at"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 512
micro_batch_size = 256
optimizer = { learning_rate = 2e-3, weight_decay = 1e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMBERS = ["amount", "country_risk", "payments_last_hour", "legacy_anomaly_score", "V1", "V2", "V3", "V4", "V5", "V6"]
ENTRIES = ["chip", "contactless", "online", "stripe"]


class FraudDetection(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def numbers(self, rows):
        x = np.stack([rows[c].cast(float).to_numpy() for c in NUMBERS], 1)
        x[:, 0], x[:, 3] = np.log1p(x[:, 0]), np.log(x[:, 3] + 1e-3)
        return x

    def fit(self, train):
        df = train.collect()
        low, median, high = np.nanquantile(self.numbers(df), [0.25, 0.5, 0.75], axis=0)
        self.fitted = {
            "median": median.tolist(),
            "iqr": np.maximum(high - low, 1.0).tolist(),
            "prior": float(df["is_fraud"].to_numpy().mean()),
        }

    def encode(self, rows):
        x = self.numbers(rows)
        missing = np.isnan(x[:, 1:2])
        x = np.nan_to_num((x - self.fitted["median"]) / self.fitted["iqr"]).clip(-8, 8)
        hour = rows["paid_at"].dt.hour().to_numpy() * 2 * np.pi / 24
        entry = np.stack([(rows["entry"] == e).to_numpy() for e in ENTRIES], 1)
        x = np.column_stack([x, missing, np.sin(hour), np.cos(hour), entry])
        batch = {"x": torch.tensor(x, dtype=torch.float32)}
        if "is_fraud" in rows.columns:
            batch[LABEL] = torch.tensor(rows["is_fraud"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return FraudNet(len(NUMBERS) + 3 + len(ENTRIES), self.fitted["prior"])

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")


class FraudNet(nn.Module):
    def __init__(self, n_in, prior):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 48), nn.LeakyReLU(), nn.Linear(48, 24), nn.LeakyReLU())
        self.out = nn.Linear(24, 1)
        nn.init.constant_(self.out.bias, float(np.log(prior / (1 - prior))))  # as in the tutorial on imbalanced data

    def forward(self, x):
        return self.out(self.body(x)).squeeze(1)
