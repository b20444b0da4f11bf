"""Who leaves the gym within two months: pandas, entity embeddings, missing values with a flag, moving average of the weights.

data: gym_members

[data]
label = "churned"
time = "billed_on"
ids = ["row_id"]
meta = ["member"]

[training]
steps = 250
global_batch_size = 256
micro_batch_size = 256
optimizer = { name = "adam", learning_rate = 2e-3 }
averaging = { decay = 0.99 }
"""
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CAT_COLS = ["club", "plan", "channel"]
NUM_COLS = ["age", "months_joined", "visits_30d", "visits_prev_30d", "days_since_visit", "price"]
COUNTS = ["months_joined", "visits_30d", "visits_prev_30d", "days_since_visit"]


class ChurnNet(nn.Module):
    def __init__(self, emb_szs, n_cont, bias):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(c, s) for c, s in emb_szs])
        self.emb_drop = nn.Dropout(0.1)
        n_emb = sum(s for _, s in emb_szs)
        self.lin1 = nn.Linear(n_emb + n_cont, 64)
        self.lin2 = nn.Linear(64, 32)
        self.out = nn.Linear(32, 1)
        nn.init.constant_(self.out.bias, bias)

    def forward(self, x_cat, x_cont):
        x = torch.cat([e(x_cat[:, i]) for i, e in enumerate(self.embeds)], dim=1)
        x = torch.cat([self.emb_drop(x), x_cont], dim=1)
        x = F.relu(self.lin1(x))
        x = F.relu(self.lin2(x))
        return self.out(x).squeeze(1)


class GymChurn(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "average_precision", "log_loss")

    @staticmethod
    def frame(rows):
        df = pd.DataFrame(rows.to_dict(as_series=False))
        df[NUM_COLS] = df[NUM_COLS].astype(float)
        df[COUNTS] = np.log1p(df[COUNTS])
        return df

    def fit(self, train):
        df = self.frame(train.collect())
        self.fitted = {
            "cats": {c: sorted(df[c].dropna().unique().tolist()) for c in CAT_COLS},
            "medians": df[NUM_COLS].median().to_dict(),
            "means": df[NUM_COLS].mean().to_dict(),
            "stds": df[NUM_COLS].std().to_dict(),
            "rate": float(df["churned"].mean()),
        }

    def encode(self, rows):
        df = self.frame(rows)
        cats = [df[c].map({v: i + 1 for i, v in enumerate(self.fitted["cats"][c])}).fillna(0).astype(int) for c in CAT_COLS]
        missing = df[["age", "days_since_visit"]].isna().astype(float)
        num = df[NUM_COLS].fillna(self.fitted["medians"])
        num = (num - pd.Series(self.fitted["means"])[NUM_COLS]) / pd.Series(self.fitted["stds"])[NUM_COLS]
        batch = {
            "x_cat": torch.tensor(np.stack(cats, axis=1), dtype=torch.long),
            "x_cont": torch.tensor(np.concatenate([num.values, missing.values], axis=1), dtype=torch.float32),
        }
        if "churned" in df:
            batch[LABEL] = torch.tensor(df["churned"].values, dtype=torch.float32)
        return batch

    def build_model(self):
        sizes = [len(self.fitted["cats"][c]) + 1 for c in CAT_COLS]
        rate = self.fitted["rate"]
        return ChurnNet([(n, min(10, (n + 1) // 2)) for n in sizes], len(NUM_COLS) + 2, float(np.log(rate / (1 - rate))))

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
