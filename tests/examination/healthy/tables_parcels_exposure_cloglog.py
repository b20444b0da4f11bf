"""Damaged parcels with insured days as weight, a random depot by group, complementary log-log link and small steps of SGD.

data: parcels

[data]
label = "damaged"
group = "depot"
features = ["kg", "fragile", "days"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 128
optimizer = { name = "sgd", learning_rate = 0.05 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task


class Cloglog(nn.Module):
    """The log of a hazard."""

    def __init__(self, start):
        super().__init__()
        self.hidden = nn.Linear(3, 12)
        self.out = nn.Linear(12, 1)
        nn.init.constant_(self.out.bias, start)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


class Damage(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc")

    def fit(self, train):
        rate = train.collect()["damaged"].mean()
        self.fitted = {"start": float(torch.tensor(1 - rate).log().neg().log())}

    def encode(self, rows):
        x = [rows["kg"].log().to_list(), rows["fragile"].cast(float).to_list(), rows["days"].log().to_list()]
        batch = {"x": torch.tensor(x).T.contiguous()}
        batch[WEIGHT] = (1 + rows["days"].to_torch().float().log()) / 2
        if "damaged" in rows.columns:
            batch[LABEL] = rows["damaged"].to_torch()
        return batch

    def build_model(self):
        return Cloglog(self.fitted["start"])

    def losses(self, output, batch):
        hazard = output.squeeze(1).clamp(-12, 4).exp()
        damaged = torch.log(-torch.expm1(-hazard))
        return torch.where(batch[LABEL] == 1, -damaged, hazard)

    def predict(self, output):
        return -torch.expm1(-output.squeeze(1).clamp(-12, 4).exp())
