"""Merchants closed for fraud: graph attention over those who share devices, padded to ten neighbours and masked.

data: merchants

[data]
label = "closed"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3, weight_decay = 5e-3 }
"""
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

OWN = ["turnover", "refund_share", "night_share", "days_open"]
MOST = 10


class GATLayer(nn.Module):
    def __init__(self, d_in, d_out, heads):
        super().__init__()
        self.heads, self.d = heads, d_out // heads
        self.lin = nn.Linear(d_in, d_out, bias=False)
        self.att_src = nn.Parameter(torch.empty(heads, self.d))
        self.att_dst = nn.Parameter(torch.empty(heads, self.d))
        self.edge = nn.Linear(1, heads)
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x, neighbours, shared, mask):
        nodes = torch.cat([x[:, None], neighbours], dim=1)
        h = self.lin(nodes).view(len(x), MOST + 1, self.heads, self.d)
        alpha = (h[:, :1] * self.att_dst).sum(-1) + (h * self.att_src).sum(-1)
        alpha = F.leaky_relu(alpha + self.edge(shared), 0.2)
        alpha = alpha.masked_fill(~mask[..., None], -1e9).softmax(dim=1)
        return (alpha[..., None] * h).sum(dim=1).flatten(1), h[:, 0].flatten(1)


class GAT(nn.Module):
    def __init__(self, d_in=4, hidden=32, heads=4):
        super().__init__()
        self.gat = GATLayer(d_in, hidden, heads)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Sequential(nn.Linear(2 * hidden, 32), nn.ELU(), nn.Linear(32, 1))

    def forward(self, x, neighbours, shared, mask):
        around, own = self.gat(x, neighbours, shared, mask)
        return self.out(self.dropout(F.elu(torch.cat([around, own], dim=1)))).squeeze(1)


class ClosedMerchants(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc")

    def scaled(self, x):
        x = np.array(x, dtype=float).reshape(-1, 4)
        x = np.concatenate([np.log(x[:, :1]), x[:, 1:3], np.log1p(x[:, 3:])], axis=1)
        return x if not self.fitted else (x - self.fitted["mean"]) / self.fitted["std"]

    def fit(self, train):
        df = train.collect()
        x = self.scaled(df.select(OWN).to_numpy())
        share = float(df["closed"].mean())
        self.fitted = {
            "mean": x.mean(axis=0).tolist(),
            "std": x.std(axis=0).tolist(),
            "pos_weight": ((1 - share) / share) ** 0.5,
        }

    def encode(self, rows):
        neighbours = np.zeros((rows.height, MOST, 4))
        shared, mask = np.zeros((rows.height, MOST + 1, 1)), np.zeros((rows.height, MOST + 1), dtype=bool)
        mask[:, 0] = True
        for i, (others, devices) in enumerate(zip(rows["neighbours"].to_list(), rows["shared_devices"].to_list())):
            n = min(len(others), MOST)
            if n:
                neighbours[i, :n] = self.scaled(others[:n])
                shared[i, 1 : n + 1, 0] = np.log(devices[:n])
                mask[i, 1 : n + 1] = True
        batch = {
            "x": torch.tensor(self.scaled(rows.select(OWN).to_numpy()), dtype=torch.float32),
            "neighbours": torch.tensor(neighbours, dtype=torch.float32),
            "shared": torch.tensor(shared, dtype=torch.float32),
            "mask": torch.from_numpy(mask),
        }
        if "closed" in rows.columns:
            batch[LABEL] = torch.tensor(rows["closed"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return GAT()

    def losses(self, output, batch):
        weight = torch.tensor(self.fitted["pos_weight"], dtype=torch.float32)
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], pos_weight=weight, reduction="none")
