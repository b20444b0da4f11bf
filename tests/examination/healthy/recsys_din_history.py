"""Deep interest network: the advertised good asks the history which of its goods matter.

data: ad_histories

[data]
label = "click"
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

GOODS = 97


class DIN(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.item = nn.Embedding(GOODS, dim, padding_idx=0)
        self.attention = nn.Sequential(nn.Linear(4 * dim, 24), nn.Sigmoid(), nn.Linear(24, 1))
        self.mlp = nn.Sequential(nn.Linear(3 * dim, 32), nn.PReLU(), nn.Linear(32, 1))
        nn.init.zeros_(self.mlp[2].weight)
        nn.init.zeros_(self.mlp[2].bias)

    def forward(self, history, ad):
        past, target = self.item(history), self.item(ad)
        asked = target[:, None].expand_as(past)
        weight = self.attention(torch.cat([asked, past, asked - past, asked * past], -1)).squeeze(-1)
        weight = weight * (history != 0)
        interest = (weight[..., None] * past).sum(1)
        return self.mlp(torch.cat([interest, target, interest * target], 1)).squeeze(1)


class AdClicks(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def encode(self, rows):
        batch = {"history": torch.tensor(rows["history"].to_list()), "ad": torch.tensor(rows["ad"].to_list())}
        if "click" in rows.columns:
            batch[LABEL] = torch.tensor(rows["click"].to_list()).float()
        return batch

    def build_model(self):
        return DIN()

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def expected_initial_loss(self):
        return math.log(2)
