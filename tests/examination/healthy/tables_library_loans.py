"""Will a loan come back too late? Categories embedded as fastai does, one loan in six is late.

Log loss 0.40; 0.47 for the share of late ones.

data: library_loans

[data]
label = "late"
time = "lent_at"
ids = ["row_id", "reader"]

[training]
steps = 220
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 4e-3, weight_decay = 0.05 }
schedule = { shape = "one_cycle" }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CAT_NAMES = ["reader_group", "branch", "kind", "reminders_by_mail", "summer_break"]
CONT_NAMES = ["items", "holds", "distance_km", "loans_before", "late_share_before"]


class LoanModel(nn.Module):
    def __init__(self, sizes, n_cont, layers=(64, 32)):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(n, min(6, (n + 1) // 2)) for n in sizes])
        self.bn_cont = nn.BatchNorm1d(n_cont)
        widths = [sum(e.embedding_dim for e in self.embeds) + n_cont + 1, *layers]
        blocks = []
        for n_in, n_out in zip(widths, widths[1:]):
            blocks += [nn.Linear(n_in, n_out), nn.ReLU(), nn.BatchNorm1d(n_out), nn.Dropout(0.3)]
        self.layers = nn.Sequential(*blocks, nn.Linear(widths[-1], 1))

    def forward(self, cats, conts, km_na):
        x = [e(cats[:, i]) for i, e in enumerate(self.embeds)]
        x = torch.cat([*x, self.bn_cont(conts), km_na], dim=1)
        return self.layers(x).squeeze(1)


class LibraryLoans(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def conts(self, df):
        x = df.select(CONT_NAMES).to_numpy().astype(float)
        x[:, [2, 3]] = np.log1p(x[:, [2, 3]])
        return x

    def fit(self, train):
        df = train.collect()
        x = self.conts(df)
        self.fitted = {
            "median": np.nanmedian(x, axis=0).tolist(),
            "mean": np.nanmean(x, axis=0).tolist(),
            "std": np.nanstd(x, axis=0).tolist(),
            "classes": {c: sorted(df[c].drop_nulls().cast(str).unique()) for c in CAT_NAMES},
        }

    def encode(self, rows):
        x = self.conts(rows)
        km_na = np.isnan(x).any(axis=1, keepdims=True)
        x = np.where(np.isnan(x), self.fitted["median"], x)
        x = (x - self.fitted["mean"]) / self.fitted["std"]
        cats = []
        for c in CAT_NAMES:
            o2i = {v: i for i, v in enumerate(["#na#", *self.fitted["classes"][c]])}
            cats.append([o2i.get(v, 0) for v in rows[c].cast(str)])
        batch = {
            "cats": torch.tensor(cats).T.contiguous(),
            "conts": torch.tensor(x, dtype=torch.float32),
            "km_na": torch.tensor(km_na, dtype=torch.float32),
        }
        if "late" in rows.columns:
            batch[LABEL] = torch.tensor((rows["late"] == "late").to_list()).float()
        return batch

    def build_model(self):
        sizes = [len(self.fitted["classes"][c]) + 1 for c in CAT_NAMES]
        return LoanModel(sizes, len(CONT_NAMES))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], reduction="none"
        )
