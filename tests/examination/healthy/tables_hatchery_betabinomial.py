"""Chicks of eggs set, overdispersed: a statistician's beta-binomial regression with hinges of the flock's age and effects of flock and machine.

data: hatchery_settings

[data]
label = "result"
time = "set_on"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-2, weight_decay = 0.02 }
schedule = { shape = "linear", warmup_fraction = 0.1 }
"""
# hatched ~ betabinomial(set, mu, phi)
# logit(mu) ~ hinge(weeks, knots) + poly(stored, 2) + poly(temp, 2) + poly(humid, 2) + males
#             + fertility + season + breed + (1 | machine) + (1 | farm/flock)
# log(phi)  ~ 1 + breed
import math

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

BREEDS = ("Lohner", "Rosse", "Hubbel", "Sasso")
FACTORS = ("machine", "farm", "flock")
LINEAR = ("stored_days", "temperature", "humidity", "egg_weight", "males_percent", "fertility_last_tray")
SQUARED = ("stored_days", "temperature", "humidity")
KNOTS = (27, 30, 33, 36, 40, 45, 50, 55)


def log_beta(a, b):
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


class BetaBinomialRegression(nn.Module):
    def __init__(self, n_terms, levels, logit_mean):
        super().__init__()
        self.intercept = nn.Parameter(torch.tensor([logit_mean, math.log(20.0)]))
        self.beta = nn.Parameter(torch.zeros(n_terms))
        self.effects = nn.ModuleDict({f: nn.Embedding(levels[f] + 1, 1) for f in FACTORS})
        self.gamma = nn.Parameter(torch.zeros(len(BREEDS)))
        for table in self.effects.values():
            nn.init.zeros_(table.weight)

    def forward(self, X, breed, factors):
        eta = self.intercept[0] + X @ self.beta
        for j, f in enumerate(FACTORS):
            eta = eta + self.effects[f](factors[:, j]).squeeze(-1)
        log_phi = self.intercept[1] + breed @ self.gamma
        return torch.stack([eta, log_phi], dim=-1)


class Hatchability(Task):
    kind = "statistic"
    metrics = {"mean_loss": "minimize", "rate_rmse": "minimize"}
    serves_predictions = True
    prediction_names = ("rate", "dispersion")

    def fit(self, train):
        df = train.collect()
        hatched, eggs = np.array(df["result"].to_list()).T
        share = hatched.sum() / eggs.sum()
        self.fitted = {
            "levels": {f: sorted(df[f].unique().to_list()) for f in FACTORS},
            "mean": {c: df[c].mean() for c in LINEAR},
            "sd": {c: df[c].std() for c in LINEAR},
            "logit": float(np.log(share / (1 - share))),
        }

    def design(self, rows):
        """The model matrix, without its intercept."""
        mean, sd = self.fitted["mean"], self.fitted["sd"]
        z = {c: ((rows[c].cast(float) - mean[c]) / sd[c]).fill_null(0.0).to_numpy() for c in LINEAR}
        weeks = rows["flock_weeks"].to_numpy().astype(float)
        day = rows["set_on"].dt.ordinal_day().to_numpy() * (2 * np.pi / 365.25)
        columns = [(weeks - 40) / 10]
        columns += [np.maximum(weeks - k, 0) / 10 for k in KNOTS]
        columns += [z[c] for c in LINEAR] + [z[c] ** 2 - 1 for c in SQUARED]
        columns += [np.sin(day), np.cos(day), rows["fertility_last_tray"].is_null().to_numpy()]
        return np.stack(columns, axis=1)

    def encode(self, rows):
        breed = np.stack([(rows["breed"] == b).to_numpy() for b in BREEDS], axis=1).astype(float)
        codes = []
        for f in FACTORS:
            code = {v: i for i, v in enumerate(self.fitted["levels"][f], 1)}
            codes.append(rows[f].replace_strict(code, default=0, return_dtype=pl.Int64).to_numpy())
        batch = {
            "X": torch.tensor(np.concatenate([self.design(rows), breed], axis=1), dtype=torch.float32),
            "breed": torch.tensor(breed, dtype=torch.float32),
            "factors": torch.tensor(np.stack(codes, axis=1)),
        }
        if "result" in rows.columns:
            batch[LABEL] = torch.tensor(rows["result"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        n_terms = 1 + len(KNOTS) + len(LINEAR) + len(SQUARED) + 3 + len(BREEDS)
        levels = {f: len(v) for f, v in self.fitted["levels"].items()}
        return BetaBinomialRegression(n_terms, levels, self.fitted["logit"])

    def losses(self, output, batch):
        """Negative log-likelihood per tray."""
        hatched, eggs = batch[LABEL].unbind(-1)
        mu, phi = output[:, 0].sigmoid(), output[:, 1].exp()
        a, b = mu * phi, (1 - mu) * phi
        choose = torch.lgamma(eggs + 1) - torch.lgamma(hatched + 1) - torch.lgamma(eggs - hatched + 1)
        return -(choose + log_beta(hatched + a, eggs - hatched + b) - log_beta(a, b))

    def predict(self, output):
        return torch.stack([output[:, 0].sigmoid(), output[:, 1].exp()], dim=-1)

    def statistic(self, output, batch):
        hatched, eggs = batch[LABEL].unbind(-1)
        wrong = (hatched / eggs - output[:, 0].sigmoid()) ** 2
        return torch.stack([self.losses(output, batch), wrong * eggs, eggs], dim=-1)

    def score(self, predictions, labels):
        loss, wrong, eggs = predictions.T
        return {"mean_loss": float(loss.mean()), "rate_rmse": float(np.sqrt(wrong.sum() / eggs.sum()))}
