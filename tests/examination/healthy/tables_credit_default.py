"""Credit card default: pandas, get_dummies, StandardScaler, an MLP with BatchNorm and Dropout.

data: credit_cards

[data]
label = "default"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 1e-3, weight_decay = 1e-3 }
normalization = { batch_norm = "sync" }
"""
import pandas as pd
import torch
import torch.nn as nn
from sklearn.preprocessing import StandardScaler

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CATEGORICAL = ["SEX", "EDUCATION", "MARRIAGE"]


class MLP(nn.Module):
    def __init__(self, input_dim, prior):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(input_dim, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1),
        )
        self.head = nn.Linear(32, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, prior)

    def forward(self, X):
        return self.head(self.net(X)).squeeze(-1)


class CreditDefault(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "average_precision", "log_loss")

    def fit(self, train):
        df = pd.DataFrame(train.collect().to_dict(as_series=False))
        X = self.dummies(df)
        scaler = StandardScaler().fit(X.to_numpy(float))
        share = df["default"].mean()
        self.fitted = {
            "columns": list(X.columns),
            "mean": scaler.mean_.tolist(),
            "scale": scaler.scale_.tolist(),
            "prior": float(torch.logit(torch.tensor(share))),
            "share": float(share),
        }

    def dummies(self, df):
        X = df[sorted(self.columns.features)]
        return pd.get_dummies(X, columns=CATEGORICAL, drop_first=False)

    def encode(self, rows):
        df = pd.DataFrame(rows.to_dict(as_series=False))
        X = self.dummies(df).reindex(columns=self.fitted["columns"], fill_value=0).to_numpy(float)
        X = (X - self.fitted["mean"]) / self.fitted["scale"]
        batch = {"X": torch.tensor(X, dtype=torch.float32)}
        if "default" in df:
            batch[LABEL] = torch.tensor(df["default"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return MLP(len(self.fitted["columns"]), self.fitted["prior"])

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)
