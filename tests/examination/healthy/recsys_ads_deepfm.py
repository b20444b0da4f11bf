"""Clicks by DeepFM: a linear part, pairs by a factorisation machine, a deep part on the same vectors; interests are a list.

data: ad_requests

[data]
label = "clicked"
time = "at"
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 1e-3, weight_decay = 0.1 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SPARSE = ["site", "town", "ad", "device"]
DENSE = ["times_shown", "seconds_since_visit"]
MOST = 6


class DeepFM(nn.Module):
    def __init__(self, sizes, n_interests, k=8):
        super().__init__()
        self.linear = nn.ModuleList([nn.Embedding(s, 1) for s in sizes])
        self.embed = nn.ModuleList([nn.Embedding(s, k) for s in sizes])
        self.interests = nn.Embedding(n_interests, k, padding_idx=0)
        self.linear_dense = nn.Linear(3, 1)
        for table in [*self.linear, *self.embed]:
            nn.init.normal_(table.weight, std=0.05)
        nn.init.normal_(self.interests.weight, std=0.05)
        with torch.no_grad():
            self.interests.weight[0].zero_()
        self.dnn = nn.Sequential(
            nn.Linear((len(sizes) + 1) * k + 3, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1),
        )

    def forward(self, sparse, interests, dense):
        vectors = [table(sparse[:, i]) for i, table in enumerate(self.embed)]
        count = (interests > 0).sum(dim=1, keepdim=True).clamp(min=1)
        vectors.append(self.interests(interests).sum(dim=1) / count)
        v = torch.stack(vectors, dim=1)
        first = sum(table(sparse[:, i]) for i, table in enumerate(self.linear)) + self.linear_dense(dense)
        square_of_sum = v.sum(dim=1) ** 2
        sum_of_square = (v**2).sum(dim=1)
        second = 0.5 * (square_of_sum - sum_of_square).sum(dim=1, keepdim=True)
        deep = self.dnn(torch.cat([v.flatten(1), dense], dim=1))
        return (first + second + deep).squeeze(1)


class Clicks(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        df = train.collect()
        self.fitted = {"levels": {}, "dense": {}}
        for c in SPARSE:
            counts = df[c].drop_nulls().value_counts()
            self.fitted["levels"][c] = sorted(counts.filter(counts["count"] >= 4)[c].to_list())
        self.fitted["interests"] = sorted(df["interests"].explode().drop_nulls().unique().to_list())
        for c in DENSE:
            values = np.log1p(df[c].cast(float).to_numpy())
            self.fitted["dense"][c] = [float(np.nanmean(values)), float(np.nanstd(values))]

    def encode(self, rows):
        sparse = []
        for c in SPARSE:
            index = {v: i for i, v in enumerate(self.fitted["levels"][c], start=1)}
            sparse.append([index.get(v, 0) for v in rows[c]])
        known = {v: i for i, v in enumerate(self.fitted["interests"], start=1)}
        interests = torch.zeros(rows.height, MOST, dtype=torch.long)
        for row, names in zip(interests, rows["interests"].to_list()):
            ids = [known[n] for n in names if n in known][:MOST]
            row[: len(ids)] = torch.tensor(ids, dtype=torch.long)
        dense = []
        for c in DENSE:
            mean, std = self.fitted["dense"][c]
            dense.append((np.log1p(rows[c].cast(float).to_numpy()) - mean) / std)
        dense = np.stack([*dense, np.isnan(dense[1])], axis=1)
        batch = {
            "sparse": torch.tensor(sparse).T.contiguous(),
            "interests": interests,
            "dense": torch.tensor(np.nan_to_num(dense), dtype=torch.float32),
        }
        if "clicked" in rows.columns:
            batch[LABEL] = torch.tensor(rows["clicked"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        sizes = [len(self.fitted["levels"][c]) + 1 for c in SPARSE]
        return DeepFM(sizes, len(self.fitted["interests"]) + 1)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
