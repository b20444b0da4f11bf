"""TiDE in small: the past, and covariates that are known ahead, through one dense encoder and decoder.

data: promoted_sales

[data]
label = "ahead"
features = ["sold", "promo_seen", "promo_ahead"]
time = "day"
ids = ["row_id"]
meta = ["store"]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

PAST, AHEAD = 28, 7


class Residual(nn.Module):
    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, n_out), nn.Dropout(0.1))
        self.skip = nn.Linear(n_in, n_out)
        self.norm = nn.LayerNorm(n_out)

    def forward(self, x):
        return self.norm(self.dense(x) + self.skip(x))


class TiDE(nn.Module):
    def __init__(self, hidden=48, per_day=4):
        super().__init__()
        self.encoder = Residual(2 * PAST + AHEAD, hidden, hidden)
        self.decoder = Residual(hidden, hidden, AHEAD * per_day)
        self.temporal = nn.Sequential(nn.Linear(per_day + 1, 16), nn.ReLU(), nn.Linear(16, 1))
        self.lookback = nn.Linear(PAST, AHEAD)
        nn.init.zeros_(self.temporal[2].weight)
        nn.init.zeros_(self.temporal[2].bias)
        nn.init.zeros_(self.lookback.weight)
        nn.init.zeros_(self.lookback.bias)

    def forward(self, sold, promo_seen, promo_ahead):
        level = sold.mean(1, keepdim=True)
        code = self.encoder(torch.cat([sold - level, promo_seen, promo_ahead], 1))
        days = self.decoder(code).view(len(sold), AHEAD, -1)
        out = self.temporal(torch.cat([days, promo_ahead.unsqueeze(-1)], -1)).squeeze(-1)
        return out + self.lookback(sold - level) + level


class PromotedSales(Task):
    kind = "statistic"
    metrics = {"wape": "minimize"}

    def fit(self, train):
        df = train.select("sold", "ahead").collect()
        past, ahead = np.log(np.array(df["sold"].to_list())), np.log(np.array(df["ahead"].to_list()))
        self.fitted = {"first": float(((ahead - past.mean(1, keepdims=True)) ** 2).mean())}

    def encode(self, rows):
        batch = {
            "sold": torch.tensor(rows["sold"].to_list(), dtype=torch.float32).log(),
            "promo_seen": torch.tensor(rows["promo_seen"].to_list(), dtype=torch.float32),
            "promo_ahead": torch.tensor(rows["promo_ahead"].to_list(), dtype=torch.float32),
        }
        if "ahead" in rows.columns:
            batch[LABEL] = torch.tensor(rows["ahead"].to_list(), dtype=torch.float32).log()
        return batch

    def build_model(self):
        return TiDE()

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(1)

    def predict(self, output):
        return output.exp()

    def statistic(self, output, batch):
        true = batch[LABEL].exp()
        return torch.stack([(output.exp() - true).abs().sum(1), true.sum(1)], 1).double()

    def score(self, predictions, labels):
        wrong, total = (predictions * labels[:, None]).sum(0)
        return {"wape": float(wrong / total)}

    def expected_initial_loss(self):
        return self.fitted["first"]
