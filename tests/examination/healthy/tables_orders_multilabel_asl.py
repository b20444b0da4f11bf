"""Six kinds of trouble with an order, none or several: one sigmoid each, the asymmetric loss, a model in double precision.

data: shop_orders

[data]
label = "trouble"
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class Orders(Task):
    kind = "statistic"
    metrics = {"exact": "maximize", "hamming": "minimize"}
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        self.fitted = {"countries": df["country"].drop_nulls().unique().sort().to_list()}

    def encode(self, rows):
        x = rows.select(pl_names(rows)).to_numpy()
        country = np.array([[c == k for k in self.fitted["countries"]] for c in rows["country"]])
        batch = {"x": torch.tensor(np.concatenate([x, country], 1), dtype=torch.float64)}
        if "trouble" in rows.columns:
            batch[LABEL] = torch.tensor(rows["trouble"].to_list(), dtype=torch.float64)
        return batch

    def build_model(self):
        n = 8 + len(self.fitted["countries"])
        return Heads(n).double()

    def losses(self, output, batch):
        y, p = batch[LABEL], output.sigmoid()
        miss = (p - 0.05).clamp(min=0)
        positive = y * torch.log(p.clamp(min=1e-8))
        negative = (1 - y) * miss**2 * torch.log((1 - miss).clamp(min=1e-8))
        return -(positive + negative).sum(1)

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        wrong = (output > 0) != (batch[LABEL] > 0.5)
        return torch.stack([(~wrong.any(1)).double(), wrong.double().mean(1)], 1)

    def score(self, predictions, labels):
        exact, hamming = np.average(predictions, axis=0, weights=labels)
        return {"exact": float(exact), "hamming": float(hamming)}


def pl_names(rows):
    return sorted(name for name in rows.columns if name.startswith("s"))


class Heads(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n, 48), nn.CELU(), nn.Linear(48, 48), nn.CELU())
        self.heads = nn.Linear(48, 6)

    def forward(self, x):
        return self.heads(self.body(x))
