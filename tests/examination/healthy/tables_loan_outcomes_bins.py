"""Small loans repaid, late or lost: quantile bins as one-hot codes, ordered answers as ranks, classes weighed in training.

data: loan_files

[data]
label = "outcome"
time = "applied_on"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { name = "sgd", learning_rate = 0.03, momentum = 0.9, weight_decay = 1e-4 }
schedule = { shape = "step", milestones = [0.6, 0.85] }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMBERS = ["income_per_month", "months", "age", "cards", "rate_of_income"]
ORDERED = {
    "savings": ["no account", "< 100", "100 to 500", "500 to 1000", ">= 1000"],
    "employed_since": ["none", "< 1 year", "1 to 4 years", "4 to 7 years", ">= 7 years"],
}
NOMINAL = ["purpose", "sales_channel"]
BINS = 8


class OutcomeMLP(nn.Sequential):
    def __init__(self, n_in, n_classes):
        super().__init__(nn.Linear(n_in, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, n_classes))

    def forward(self, features):
        return super().forward(features)


class LoanOutcome(Task):
    kind = "multiclass"
    metrics = directions_of("balanced_accuracy", "macro_f1", "log_loss")

    def number(self, rows, name):
        if name == "rate_of_income":
            values = rows["amount"] / rows["months"] / rows["income_per_month"]
        else:
            values = rows[name]
        return values.cast(float).fill_null(float("nan")).to_numpy()

    def fit(self, train):
        df = train.collect()
        edges = {}
        for name in NUMBERS:
            cuts = np.nanquantile(self.number(df, name), np.linspace(0, 1, BINS + 1)[1:-1])
            edges[name] = np.unique(cuts).tolist()
        classes, counts = np.unique(df["outcome"].to_numpy(), return_counts=True)
        self.fitted = {
            "edges": edges,
            "levels": {name: sorted(df[name].unique().to_list()) for name in NOMINAL},
            "classes": classes.tolist(),
            "weights": (counts.sum() / (len(counts) * counts)).tolist(),
        }

    def encode(self, rows):
        parts = []
        for name in NUMBERS:
            values, edges = self.number(rows, name), self.fitted["edges"][name]
            codes = np.where(np.isnan(values), BINS, np.digitize(values, edges))
            parts.append(np.eye(BINS + 1)[codes])
        for name, order in ORDERED.items():
            ranks = [order.index(v) if v in order else -1 for v in rows[name]]
            parts.append(np.array(ranks)[:, None] / 2.0 - 1.0)
        for name in NOMINAL:
            parts.append(np.array([[v == level for level in self.fitted["levels"][name]] for v in rows[name]]))
        batch = {"features": torch.from_numpy(np.hstack(parts).astype(np.float32))}
        if "outcome" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["classes"].index(v) for v in rows["outcome"]])
        return batch

    def build_model(self):
        width = len(NUMBERS) * (BINS + 1) + len(ORDERED) + sum(len(v) for v in self.fitted["levels"].values())
        return OutcomeMLP(width, len(self.fitted["classes"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        weights = torch.tensor(self.fitted["weights"])
        return self.losses(output, batch) * weights[batch[LABEL]]

    @property
    def prediction_names(self):
        return self.fitted["classes"]
