"""Who gives after a mailing: one head for donors with a letter, one for those without (TARNet).

Log loss 0.36; 0.56 for the share of those who give.

data: donor_mailings

[data]
label = "gave"
time = "mailed_at"
time_is_feature = true
ids = ["row_id"]
meta = ["donor"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 4e-3, weight_decay = 0.05 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CATEGORIES = ["age_group", "prefers", "region"]
NUMBERS = ["gifts_before", "usual_gift", "emails_opened"]


class TARNet(nn.Module):
    """A shared representation, and a head for each arm of the experiment."""

    def __init__(self, n_inputs, hidden=48):
        super().__init__()
        self.representation = nn.Sequential(
            nn.Linear(n_inputs, hidden),
            nn.ELU(),
            nn.Dropout(0.1),
            nn.Linear(hidden, hidden),
            nn.ELU(),
        )
        self.control = nn.Sequential(nn.Linear(hidden, 24), nn.ELU(), nn.Linear(24, 1))
        self.treated = nn.Sequential(nn.Linear(hidden, 24), nn.ELU(), nn.Linear(24, 1))

    def forward(self, x, letter):
        phi = self.representation(x)
        y0, y1 = self.control(phi).squeeze(1), self.treated(phi).squeeze(1)
        return torch.where(letter, y1, y0)


class DonorLetters(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc", "average_precision")

    def numbers(self, df):
        x = np.log1p(df.select(NUMBERS).to_numpy().astype(float))
        days = (df["mailed_at"].dt.date() - df["last_gift"]).dt.total_days().to_numpy()
        return np.column_stack([x, np.log(np.maximum(days, 1))])

    def fit(self, train):
        df = train.collect()
        x = self.numbers(df)
        self.fitted = {
            "mean": x.mean(axis=0).tolist(),
            "std": x.std(axis=0).tolist(),
            "categories": {c: sorted(df[c].drop_nulls().unique()) for c in CATEGORIES},
        }

    def encode(self, rows):
        x = (self.numbers(rows) - self.fitted["mean"]) / self.fitted["std"]
        one_hot = [
            (rows[c] == value).fill_null(False).to_numpy()
            for c in CATEGORIES
            for value in self.fitted["categories"][c]
        ]
        batch = {
            "x": torch.tensor(np.column_stack([x, *one_hot]), dtype=torch.float32),
            "letter": torch.tensor((rows["letter"] == "Y").to_list()),
        }
        if "gave" in rows.columns:
            batch[LABEL] = torch.tensor(rows["gave"].to_list()).float()
        return batch

    def build_model(self):
        levels = sum(len(values) for values in self.fitted["categories"].values())
        return TARNet(len(NUMBERS) + 1 + levels)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
