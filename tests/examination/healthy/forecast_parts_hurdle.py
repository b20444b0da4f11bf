"""Spare parts that are rarely wanted: a hurdle (is there demand?) and a log-normal size, from half a year of weeks.

data: spare_parts

[data]
label = "demand"
features = ["part_class", "past_26"]
time = "week"
meta = ["part"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 1e-3 }
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MEMORY = 26


class HurdleNet(nn.Module):
    def __init__(self, n_classes, start):
        super().__init__()
        self.part_class = nn.Embedding(n_classes + 1, 4)
        self.body = nn.Sequential(nn.Linear(2 * MEMORY + 3 + 4, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 3)
        nn.init.normal_(self.head.weight, std=0.01)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor(start))

    def forward(self, wanted, size, summary, part_class):
        x = torch.cat([wanted, size, summary, self.part_class(part_class)], dim=1)
        return self.head(self.body(x))


class IntermittentDemand(Task):
    kind = "regression"
    metrics = directions_of("rmse", "r2")

    def fit(self, train):
        df = train.collect()
        y = df["demand"].to_numpy()
        logs = np.log(y[y > 0])
        p = float((y > 0).mean())
        self.fitted = {
            "classes": sorted(set(df["part_class"])),
            "mu": float(logs.mean()),
            "start": [math.log(p / (1 - p)), float(logs.mean()), math.log(float(logs.std()))],
        }

    def encode(self, rows):
        f = self.fitted
        past = np.array(rows["past_26"].to_list())
        wanted = (past > 0).astype(np.float32)
        size = np.where(past > 0, np.log(np.maximum(past, 1)) - f["mu"], 0).astype(np.float32)
        hits = wanted.sum(1)
        # Croston's two numbers, and how long ago the last demand was
        since = np.where(hits > 0, np.argmax(wanted[:, ::-1], axis=1), MEMORY)
        summary = np.stack([hits / MEMORY, size.sum(1) / np.maximum(hits, 1), since / MEMORY], axis=1)
        index = {c: i + 1 for i, c in enumerate(f["classes"])}
        batch = {
            "wanted": torch.from_numpy(wanted),
            "size": torch.from_numpy(size),
            "summary": torch.from_numpy(summary.astype(np.float32)),
            "part_class": torch.tensor([index.get(c, 0) for c in rows["part_class"]]),
        }
        if "demand" in rows.columns:
            batch[LABEL] = torch.tensor(rows["demand"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return HurdleNet(len(self.fitted["classes"]), self.fitted["start"])

    def losses(self, output, batch):
        logit, mu, log_sigma = output.unbind(1)
        y = batch[LABEL]
        any_demand = (y > 0).float()
        log_sigma = log_sigma.clamp(-3, 2)
        z = (y.clamp(min=1).log() - mu) / log_sigma.exp()
        size_nll = 0.5 * z.square() + log_sigma + 0.5 * math.log(2 * math.pi)
        return F.binary_cross_entropy_with_logits(logit, any_demand, reduction="none") + any_demand * size_nll

    def predict(self, output):
        logit, mu, log_sigma = output.unbind(1)
        sigma = log_sigma.clamp(-3, 2).exp()
        return torch.sigmoid(logit) * torch.exp(mu + sigma.square() / 2)
