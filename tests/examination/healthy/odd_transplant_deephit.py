"""Two competing causes after a transplant (DeepHit): one softmax over causes and years, the censored count for what is left.

data: transplants

[data]
label = "outcome"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 3e-3, weight_decay = 0.1 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

YEARS, CAUSES = 10, 2


class DeepHit(nn.Module):
    def __init__(self, d=4, hidden=24):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Dropout(0.1))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden + d, hidden), nn.ReLU(), nn.Linear(hidden, YEARS)) for _ in range(CAUSES)
        )
        self.later = nn.Parameter(torch.zeros(1))  # beyond the last year

    def forward(self, x):
        h = torch.cat([self.shared(x), x], dim=1)
        logits = torch.stack([head(h) for head in self.heads], dim=1)
        return torch.cat([logits.flatten(1), self.later.expand(len(x), 1)], dim=1)


class Transplant(Task):
    kind = "statistic"
    metrics = {"nll": "minimize"}

    def fit(self, train):
        x = self.design(train.collect())
        self.fitted = {"mean": x.mean(0).tolist(), "std": x.std(0).tolist()}

    def design(self, rows):
        return rows.select("age", "hla_match", "cold_hours", "diabetes").to_numpy().astype(float)

    def encode(self, rows):
        x = (self.design(rows) - self.fitted["mean"]) / self.fitted["std"]
        batch = {"x": torch.tensor(x, dtype=torch.float32)}
        if "outcome" in rows.columns:
            time, cause = np.array(rows["outcome"].to_list()).T
            interval = np.minimum(time.astype(int), YEARS)
            cause = np.where(interval == YEARS, 0, cause)  # administratively censored
            batch[LABEL] = torch.tensor(np.column_stack([interval, cause]), dtype=torch.long)
        return batch

    def build_model(self):
        return DeepHit()

    def losses(self, output, batch):
        interval, cause = batch[LABEL].unbind(1)
        log_p = output.log_softmax(dim=1)
        at = (cause.clamp(min=1) - 1) * YEARS + interval.clamp(max=YEARS - 1)
        event = log_p.gather(1, at[:, None])[:, 0]
        year = torch.arange(YEARS).repeat(CAUSES)
        still = torch.cat([year[None] >= interval[:, None], torch.ones(len(interval), 1, dtype=torch.bool)], dim=1)
        alive = torch.where(still, log_p, -torch.inf).logsumexp(dim=1)
        return -torch.where(cause > 0, event, alive)

    def score(self, predictions, labels):
        return {"nll": float(np.average(predictions.reshape(len(labels), -1)[:, 0], weights=labels))}
