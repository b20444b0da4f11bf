"""Grades of kernels as each grader gives them: a hidden grade, and a confusion matrix per grader.

data: graded_kernels

[data]
label = "grade"
group = "kernel"
ids = ["row_id"]
meta = ["lot"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 6e-3, weight_decay = 0.01 }
"""
# Rodrigues & Pereira's crowd layer with probabilities instead of weights (as Dawid and Skene):
#   P(grader says j) = sum_k P(true grade is k | kernel) * C[grader, k, j]
# C starts near the identity, or else the hidden grades would have no meaning.
import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

GRADES = ["I", "II", "III", "sample"]
MEASURES = ["length_mm", "width_mm", "lightness", "yellow", "cracks", "density"]


class CrowdLayer(nn.Module):
    def __init__(self, n_graders, n_classes):
        super().__init__()
        self.common = nn.Parameter(3.0 * torch.eye(n_classes))
        self.own = nn.Embedding(n_graders + 1, n_classes * n_classes, padding_idx=0)
        nn.init.zeros_(self.own.weight)

    def forward(self, log_hidden, grader):
        own = self.own(grader).view(-1, *self.common.shape)
        log_confusion = (self.common + own).log_softmax(dim=2)
        return torch.logsumexp(log_hidden[:, :, None] + log_confusion, dim=1)


class KernelNet(nn.Module):
    def __init__(self, n_graders):
        super().__init__()
        self.classifier = nn.Sequential(
            nn.Linear(len(MEASURES), 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, len(GRADES))
        )
        self.crowd = CrowdLayer(n_graders, len(GRADES))

    def forward(self, measures, grader):
        return self.crowd(self.classifier(measures).log_softmax(dim=1), grader)


class Kernels(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy")

    def fit(self, train):
        middle, spread, graders = (
            train.select(pl.col(MEASURES).median()).collect().row(0),
            train.select(pl.col(MEASURES).quantile(0.84) - pl.col(MEASURES).quantile(0.16)),
            train.select(pl.col("grader").unique().sort()).collect(),
        )
        self.fitted = {
            "middle": list(middle),
            "half_spread": [s / 2 for s in spread.collect().row(0)],
            "graders": graders["grader"].to_list(),
        }

    def encode(self, rows):
        raw = rows.select(MEASURES).cast(pl.Float64).to_numpy()
        z = (raw - self.fitted["middle"]) / self.fitted["half_spread"]
        place = {g: i for i, g in enumerate(self.fitted["graders"], start=1)}
        batch = {
            "measures": torch.from_numpy(np.nan_to_num(np.clip(z, -5, 5))).float(),
            "grader": torch.tensor([place.get(g, 0) for g in rows["grader"]]),
        }
        if "grade" in rows.columns:
            batch[LABEL] = torch.tensor([GRADES.index(g) for g in rows["grade"]])
        return batch

    def build_model(self):
        return KernelNet(len(self.fitted["graders"]))

    def losses(self, output, batch):
        return nn.functional.nll_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.exp()
