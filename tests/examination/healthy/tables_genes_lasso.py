"""Relapse from 300 genes and few patients: SelectKBest by t, then logistic regression with an L1 penalty.

data: expressions

[data]
label = "relapse"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 1e-2, weight_decay = 0.0 }
"""
import math

import numpy as np
import torch
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

K = 60
L1 = 5e-3


class Logistic(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.coef = nn.Parameter(torch.zeros(k))
        self.intercept = nn.Parameter(torch.zeros(()))
        self.noise = nn.Dropout(0.2)

    def forward(self, genes):
        z = self.noise(genes) @ self.coef + self.intercept
        return torch.stack([z, self.coef.abs().sum().expand_as(z)], dim=1)


class GeneSignature(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "balanced_accuracy")

    def fit(self, train):
        df = train.collect()
        genes = sorted(self.columns.features)
        X, y = df.select(genes).to_numpy(), (df["relapse"] == "yes").to_numpy()
        pipe = make_pipeline(FunctionTransformer(np.log2), StandardScaler(), SelectKBest(f_classif, k=K)).fit(X, y)
        scaler, select = pipe[1], pipe[2]
        kept = np.flatnonzero(select.get_support())
        self.signature = [
            {"gene": genes[k], "mean": float(scaler.mean_[k]), "scale": float(scaler.scale_[k])} for k in kept
        ]

    def state(self):
        return {"signature": self.signature}

    def load_state(self, state):
        self.signature = state["signature"]

    def encode(self, rows):
        z = [(np.log2(rows[g["gene"]].to_numpy()) - g["mean"]) / g["scale"] for g in self.signature]
        batch = {"genes": torch.tensor(np.stack(z, axis=1), dtype=torch.float32)}
        if "relapse" in rows.columns:
            batch[LABEL] = torch.tensor((rows["relapse"] == "yes").to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return Logistic(len(self.signature))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output[:, 0], batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return self.losses(output, batch) + L1 * output[:, 1]

    def predict(self, output):
        return output[:, 0].sigmoid()

    def expected_initial_loss(self):
        return math.log(2)
