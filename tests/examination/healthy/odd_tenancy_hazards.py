"""How long tenants stay, as pycox' LogisticHazard does it: uneven intervals, those who still live there are censored.

data: tenancies

[data]
label = "stay"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from perennial.engine.task import LABEL, Task

#: ends of the intervals in days; the last one is open
CUTS = (90, 180, 300, 420, 600, 800, 1100, 1500, 2000)
N_INTERVALS = len(CUTS) + 1


class LogisticHazard(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(n_in, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())
        self.hazards = nn.Linear(40, N_INTERVALS)

    def forward(self, covariates):
        return self.hazards(self.shared(covariates))


class Tenancies(Task):
    kind = "statistic"
    metrics = {"nll": "minimize"}
    numeric = ("rent_per_m2", "square_metres", "age", "floor")

    def frame(self, rows):
        df = rows.to_pandas()
        df["rent_per_m2"] = np.log(df.rent / df.square_metres)
        return df

    def fit(self, train):
        df = self.frame(train.collect())[list(self.numeric)]
        self.fitted = {"mean": df.mean().to_dict(), "std": df.std().to_dict()}

    def encode(self, rows):
        df = self.frame(rows)
        cols = [(df[c] - self.fitted["mean"][c]) / self.fitted["std"][c] for c in self.numeric]
        cols += [df.lift.astype(float), df.pets.astype(float)]
        batch = {"covariates": torch.tensor(np.column_stack(cols), dtype=torch.float32)}
        if "stay" in df:
            stay = np.stack(df.stay.to_list())
            interval = np.searchsorted(CUTS, stay[:, 0])
            batch[LABEL] = torch.tensor(np.column_stack([interval, stay[:, 1]]), dtype=torch.long)
        return batch

    def build_model(self):
        return LogisticHazard(len(self.numeric) + 2)

    def losses(self, output, batch):
        interval, event = batch[LABEL][:, 0], batch[LABEL][:, 1]
        at_risk_until = interval + event  # one who still lives there has not survived the interval
        k = torch.arange(N_INTERVALS, device=output.device)
        at_risk = (k[None] < at_risk_until[:, None]).float()
        moved_out = ((k[None] == interval[:, None]) & (event[:, None] == 1)).float()
        return (binary_cross_entropy_with_logits(output, moved_out, reduction="none") * at_risk).sum(1)

    def predict(self, output):
        """P(still there) at the end of each interval."""
        return (1 - output.sigmoid()).cumprod(dim=1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"nll": float(np.average(predictions.ravel(), weights=labels))}
