"""Days in a clinic and a return within a month, one network, the two losses weighed by learned uncertainties.

data: clinic_stays

[data]
label = "outcome"
group = "patient"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3, weight_decay = 0.01 }
"""
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

WARDS = ["cardiology", "medicine", "neurology", "orthopaedics", "surgery"]
NUMERIC = ["age", "comorbidities", "albumin", "sodium"]


class TwoHeads(nn.Module):
    def __init__(self, d_in):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(d_in, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU())
        self.days = nn.Linear(32, 1)
        self.back = nn.Linear(32, 1)
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.shared(x)
        return torch.cat([self.days(h), self.back(h), self.log_vars.expand(len(x), 2)], dim=1)


class ClinicStays(Task):
    kind = "statistic"
    metrics = {"loss_both": "minimize", "days_mae": "minimize", "back_log_loss": "minimize"}
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        x = df.select(NUMERIC).cast(float).to_numpy()
        days = np.log(np.array(df["outcome"].to_list())[:, 0])
        self.fitted = {
            "median": np.nanmedian(x, axis=0).tolist(),
            "std": np.nanstd(x, axis=0).tolist(),
            "days": [float(days.mean()), float(days.std())],
        }

    def encode(self, rows):
        x = rows.select(NUMERIC).cast(float).to_numpy()
        missing = np.isnan(x[:, 2:])
        x = (np.where(np.isnan(x), self.fitted["median"], x) - self.fitted["median"]) / self.fitted["std"]
        ward = np.array([[w == each for each in WARDS] for w in rows["ward"]])
        emergency = (rows["admission"] == "emergency").to_numpy()[:, None]
        features = np.concatenate([x, missing, ward, emergency], axis=1)
        batch = {"x": torch.tensor(features, dtype=torch.float32)}
        if "outcome" in rows.columns:
            batch[LABEL] = torch.tensor(rows["outcome"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return TwoHeads(4 + 2 + len(WARDS) + 1)

    def parts(self, output, batch):
        mean, std = self.fitted["days"]
        days = (torch.log(batch[LABEL][:, 0]) - mean) / std
        squared = (output[:, 0] - days) ** 2
        bce = F.binary_cross_entropy_with_logits(output[:, 1], batch[LABEL][:, 1], reduction="none")
        return squared, bce

    def losses(self, output, batch):
        squared, bce = self.parts(output, batch)
        s1, s2 = output[:, 2], output[:, 3]
        return 0.5 * torch.exp(-s1) * squared + 0.5 * s1 + torch.exp(-s2) * bce + 0.5 * s2

    def predict(self, output):
        mean, std = self.fitted["days"]
        return torch.stack([torch.exp(output[:, 0] * std + mean), torch.sigmoid(output[:, 1])], dim=1)

    @property
    def prediction_names(self):
        return ("days", "comes_back")

    def statistic(self, output, batch):
        _, bce = self.parts(output, batch)
        error = (self.predict(output)[:, 0] - batch[LABEL][:, 0]).abs()
        return torch.stack([self.losses(output, batch), error, bce], dim=1)

    def score(self, predictions, labels):
        loss, error, bce = np.average(predictions, axis=0, weights=labels)
        return {"loss_both": float(loss), "days_mae": float(error), "back_log_loss": float(bce)}
