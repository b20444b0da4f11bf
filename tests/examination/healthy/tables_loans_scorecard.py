"""A bank's scorecard: quantile bins, weight of evidence per bin, unknown values in a bin of their own, a logit.

data: small_loans

[data]
label = "defaulted"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 2e-2, weight_decay = 0.0 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

BINS = 8


def woe_table(codes, bad, n_codes):
    """log(share of the good / share of the bad) of each bin, with half a case added to both."""
    n_bad = np.bincount(codes, weights=bad, minlength=n_codes) + 0.5
    n_good = np.bincount(codes, weights=1 - bad, minlength=n_codes) + 0.5
    return np.log((n_good / n_good.sum()) / (n_bad / n_bad.sum()))


class Scorecard(Task):
    kind = "binary"
    metrics = {"ks": "maximize", **directions_of("roc_auc", "log_loss")}

    def fit(self, train):
        df = train.collect()
        bad = df["defaulted"].to_numpy().astype(float)
        self.card = []
        for name, dtype in sorted(self.columns.features.items()):
            if dtype == "String":
                spec = {"name": name, "levels": sorted(df[name].unique())}
            else:
                x = df[name].drop_nulls().to_numpy()
                cuts = np.unique(np.quantile(x, np.linspace(0, 1, BINS + 1)[1:-1]))
                spec = {"name": name, "cuts": cuts.tolist()}
            n_codes = len(spec.get("levels", [])) + len(spec.get("cuts", [])) + 2
            spec["woe"] = woe_table(self.codes(df, spec), bad, n_codes).tolist()
            self.card.append(spec)
        self.bad_rate = float(bad.mean())

    def codes(self, df, spec):
        """0 is for what is unknown; the bins follow."""
        column = df[spec["name"]]
        if "levels" in spec:
            place = {level: k + 1 for k, level in enumerate(spec["levels"])}
            return np.array([place.get(v, 0) for v in column])
        values = column.cast(float).fill_null(np.nan).to_numpy()
        return np.where(np.isnan(values), 0, 1 + np.searchsorted(spec["cuts"], values, side="right"))

    def state(self):
        return {"card": self.card, "bad_rate": self.bad_rate}

    def load_state(self, state):
        self.card, self.bad_rate = state["card"], state["bad_rate"]

    def encode(self, rows):
        woe = [np.array(spec["woe"])[self.codes(rows, spec)] for spec in self.card]
        batch = {"woe": torch.tensor(np.stack(woe, axis=1), dtype=torch.float32)}
        if "defaulted" in rows.columns:
            batch[LABEL] = torch.tensor(rows["defaulted"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        model = nn.Linear(len(self.card), 1)
        nn.init.zeros_(model.weight)
        nn.init.constant_(model.bias, math.log(self.bad_rate / (1 - self.bad_rate)))
        return Named(model)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def score(self, predictions, labels):
        order = np.argsort(predictions)
        bad = np.cumsum(labels[order]) / max(labels.sum(), 1)
        good = np.cumsum(1 - labels[order]) / max((1 - labels).sum(), 1)
        return super().score(predictions, labels) | {"ks": float(np.abs(good - bad).max())}

    def expected_initial_loss(self):
        p = self.bad_rate
        return -p * math.log(p) - (1 - p) * math.log(1 - p)


class Named(nn.Module):
    def __init__(self, logit):
        super().__init__()
        self.logit = logit

    def forward(self, woe):
        return self.logit(woe).squeeze(1)
