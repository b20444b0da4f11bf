"""Three in a hundred: BCEWithLogitsLoss with pos_weight while training, plain loss in judgement.

data: card_payments

[data]
label = "fraud"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 1e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Fraud(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc")

    def fit(self, train):
        pdf = train.collect().to_pandas()
        self.merchants = sorted(pdf.merchant.unique())
        self.pos_weight = float(np.sqrt((pdf.fraud == 0).sum() / (pdf.fraud == 1).sum()))
        logs = np.log1p(pdf[["amount", "km_from_home"]])
        self.center, self.spread = logs.mean().to_dict(), logs.std().to_dict()

    def state(self):
        return dict(merchants=self.merchants, pos_weight=self.pos_weight, center=self.center, spread=self.spread)

    def load_state(self, state):
        self.__dict__.update(state)

    def encode(self, rows):
        pdf = rows.to_pandas()
        cols = [(np.log1p(pdf[c]) - self.center[c]) / self.spread[c] for c in ("amount", "km_from_home")]
        cols += [np.sin(2 * np.pi * pdf.hour / 24), np.cos(2 * np.pi * pdf.hour / 24), pdf.tries]
        cols += [(pdf.merchant == m) for m in self.merchants]
        X = np.column_stack([np.asarray(c, dtype=np.float32) for c in cols])
        batch = {"inputs": torch.from_numpy(X)}
        if "fraud" in pdf:
            batch[LABEL] = torch.from_numpy(pdf.fraud.to_numpy(dtype=np.float32, copy=True))
        return batch

    def build_model(self):
        return Scorer(5 + len(self.merchants))

    def losses(self, output, batch):
        return nn.BCEWithLogitsLoss(reduction="none")(output, batch[LABEL])

    def training_losses(self, output, batch):
        return nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.tensor(self.pos_weight))(output, batch[LABEL])

    def predict(self, output):
        # undo the weight, so that probabilities mean what they say
        return torch.sigmoid(output - math.log(self.pos_weight))

    def expected_initial_loss(self):
        return math.log(2)


class Scorer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, inputs):
        return self.fc(inputs).view(-1)
