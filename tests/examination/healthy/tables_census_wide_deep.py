"""Wide and deep, ported from Keras; the label is text.

data: census

[data]
label = "income"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 1e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMERIC_FEATURE_NAMES = ["age", "education_years", "hours_per_week", "capital_gain"]
CATEGORICAL = ["education", "occupation", "marital_status"]


class WideAndDeep(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "roc_auc", "log_loss")

    def fit(self, train):
        df = train.collect()
        self.vocabulary = {name: sorted(df[name].unique().to_list()) for name in CATEGORICAL}
        num = np.log1p(df.select(NUMERIC_FEATURE_NAMES).to_numpy())
        self.mean, self.var = num.mean(axis=0).tolist(), num.var(axis=0).tolist()

    def state(self):
        return {"vocabulary": self.vocabulary, "mean": self.mean, "var": self.var}

    def load_state(self, state):
        self.vocabulary, self.mean, self.var = state["vocabulary"], state["mean"], state["var"]

    def encode(self, rows):
        num = (np.log1p(rows.select(NUMERIC_FEATURE_NAMES).to_numpy()) - self.mean) / np.sqrt(self.var)
        wide = []
        for name in CATEGORICAL:
            words = np.array(self.vocabulary[name])
            wide.append(rows[name].to_numpy()[:, None] == words[None, :])
        batch = {"wide": torch.tensor(np.concatenate(wide, 1), dtype=torch.float32), "deep": torch.tensor(num, dtype=torch.float32)}
        if "income" in rows.columns:
            batch[LABEL] = torch.tensor((rows["income"] == ">50K").to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Model(sum(len(v) for v in self.vocabulary.values()), len(self.mean))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output.squeeze(1), batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output).squeeze(1)

    def expected_initial_loss(self):
        return math.log(2)


class Model(nn.Module):
    def __init__(self, n_wide, n_deep):
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(n_deep + n_wide, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU())
        self.merged = nn.Linear(32 + n_wide, 1)

    def forward(self, wide, deep):
        return self.merged(torch.cat([self.deep(torch.cat([deep, wide], 1)), wide], 1))
