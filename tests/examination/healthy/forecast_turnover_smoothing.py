"""Holt and Winters by gradient: smoothing constants by trade, a seasonal index from the window, a small correction on top.

data: shop_turnover

[data]
label = "turnover"
features = ["trade", "months"]
time = "closed_on"
meta = ["shop"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-2, weight_decay = 0.0 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

YEAR, N = 12, 36


class HoltWinters(nn.Module):
    """All in logarithms, so that a multiplicative season is added."""

    def __init__(self, n_trades):
        super().__init__()
        self.alpha = nn.Embedding(n_trades, 1)
        self.gamma = nn.Embedding(n_trades, 1)
        self.damp = nn.Parameter(torch.tensor(0.0))
        nn.init.zeros_(self.alpha.weight)
        nn.init.constant_(self.gamma.weight, -1.0)
        self.correct = nn.Sequential(nn.Linear(YEAR, 16), nn.Tanh(), nn.Linear(16, 1))
        nn.init.zeros_(self.correct[2].weight)
        nn.init.zeros_(self.correct[2].bias)

    def forward(self, logs, trade):
        alpha = torch.sigmoid(self.alpha(trade)).squeeze(1)
        gamma = torch.sigmoid(self.gamma(trade)).squeeze(1)
        level = logs[:, :YEAR].mean(1)
        season = list((logs[:, :YEAR] - level.unsqueeze(1)).unbind(1))
        errors = []
        for t in range(YEAR, N):
            expected = level + season[t % YEAR]
            error = logs[:, t] - expected
            errors.append(error)
            level = level + alpha * error
            season[t % YEAR] = season[t % YEAR] + gamma * (1 - alpha) * error
        recent = torch.stack(errors[-YEAR:], dim=1)
        correction = torch.sigmoid(self.damp) * self.correct(recent).squeeze(1)
        return level + season[N % YEAR] + correction


class Turnover(Task):
    kind = "regression"
    metrics = directions_of("smape", "mae")

    def fit(self, train):
        df = train.collect()
        self.fitted = {"trades": sorted(set(df["trade"]))}

    def encode(self, rows):
        index = {t: i for i, t in enumerate(self.fitted["trades"], 1)}
        batch = {
            "logs": torch.tensor(rows["months"].to_list()).clamp(min=0.01).log(),
            "trade": torch.tensor([index.get(t, 0) for t in rows["trade"]]),
        }
        if "turnover" in rows.columns:
            batch[LABEL] = torch.tensor(rows["turnover"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return HoltWinters(len(self.fitted["trades"]) + 1)

    def losses(self, output, batch):
        return (output - batch[LABEL].clamp(min=0.01).log()).abs()

    def predict(self, output):
        return output.exp()
