"""Flats that visitors of a portal open and ask for, as in ESMM (Ma et al., 2018): two towers on
shared embeddings, the second learns P(asks | opens) through the product over all impressions.

data: letting_impressions

[data]
label = "outcome"
time = "shown_at"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3, weight_decay = 0.1 }
schedule = { shape = "cosine" }
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

SPARSE = ["district", "device", "rooms", "wanted_rooms"]
DENSE = ["rent", "budget", "over_budget", "photos", "balcony", "asked_this_week"]


def dense_features(rows):
    """Amounts as logarithms; None where a visitor has not said what they can pay."""
    for row in rows.iter_rows(named=True):
        rent, budget = math.log(row["rent"]), row["budget"] and math.log(row["budget"])
        yield [
            rent,
            budget,
            None if budget is None else rent - budget,
            math.sqrt(row["photos"]),
            float(row["balcony"]),
            float(row["asked_this_week"]),
        ]


def tower(width):
    return nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))


class ESMM(nn.Module):
    def __init__(self, vocabularies, start, dim=4):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n + 1, dim) for n in vocabularies)
        width = dim * len(vocabularies) + 2 * len(DENSE)
        self.open_tower = tower(width)
        self.ask_tower = tower(width)
        for part, share in zip((self.open_tower, self.ask_tower), start):
            nn.init.constant_(part[-1].bias, math.log(share / (1 - share)))

    def forward(self, sparse, dense):
        embedded = [table(column) for table, column in zip(self.embeddings, sparse.unbind(1))]
        x = torch.cat([*embedded, dense], dim=1)
        return torch.cat([self.open_tower(x), self.ask_tower(x)], dim=1)


class Lettings(Task):
    kind = "statistic"
    metrics = {"asked_log_loss": "minimize", "opened_log_loss": "minimize"}
    serves_predictions = True

    @property
    def prediction_names(self):
        return ["p_opened", "p_asked"]

    def fit(self, train):
        df = train.collect()
        known = [[v for v in column if v is not None] for column in zip(*dense_features(df))]
        mean = [math.fsum(v) / len(v) for v in known]
        spread = [math.fsum((e - m) ** 2 for e in v) / len(v) for v, m in zip(known, mean)]
        opened = [o[0] for o in df["outcome"].to_list()]
        asked = [o[1] for o in df["outcome"].to_list()]
        self.fitted = {
            "vocabulary": {c: sorted(df[c].drop_nulls().unique().to_list()) for c in SPARSE},
            "mean": mean,
            "std": [math.sqrt(s) + 1e-6 for s in spread],
            "start": [sum(opened) / len(opened), sum(asked) / sum(opened)],
        }

    def encode(self, rows):
        sparse = []
        for column in SPARSE:  # 0: not said, or not seen in training
            index = {v: k for k, v in enumerate(self.fitted["vocabulary"][column], start=1)}
            sparse.append(torch.tensor([index.get(v, 0) for v in rows[column]]))
        mean, std = self.fitted["mean"], self.fitted["std"]
        dense = [
            [0.0 if v is None else (v - m) / s for v, m, s in zip(values, mean, std)]
            + [float(v is None) for v in values]
            for values in dense_features(rows)
        ]
        batch = {"sparse": torch.stack(sparse, dim=1), "dense": torch.tensor(dense)}
        if "outcome" in rows.columns:
            batch[LABEL] = torch.tensor(rows["outcome"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        vocabularies = [len(self.fitted["vocabulary"][column]) for column in SPARSE]
        return ESMM(vocabularies, self.fitted["start"])

    def predict(self, output):
        """P(opens), and P(opens and asks)."""
        p_open, p_ask_given_open = output.sigmoid().unbind(1)
        return torch.stack([p_open, p_open * p_ask_given_open], dim=1)

    def statistic(self, output, batch):
        opened, asked = batch[LABEL].unbind(1)
        p_open, p_ask = self.predict(output).clamp(1e-6, 1 - 1e-6).unbind(1)
        return torch.stack(
            [
                F.binary_cross_entropy(p_ask, asked, reduction="none"),
                F.binary_cross_entropy(p_open, opened, reduction="none"),
            ],
            dim=1,
        )

    def losses(self, output, batch):
        opened, asked = batch[LABEL].unbind(1)
        open_logit, ask_logit = output.unbind(1)
        loss_open = F.binary_cross_entropy_with_logits(open_logit, opened, reduction="none")
        p_both = open_logit.sigmoid() * ask_logit.sigmoid()
        loss_both = F.binary_cross_entropy(p_both.clamp(1e-6, 1 - 1e-6), asked, reduction="none")
        return loss_open + loss_both

    def score(self, predictions, labels):
        mean = (predictions * labels[:, None]).sum(0) / labels.sum()
        return {"asked_log_loss": float(mean[0]), "opened_log_loss": float(mean[1])}
