"""A week of page views at once: logarithms relative to the window's median, an MLP, mean absolute error.

data: web_traffic

[data]
label = "next_week"
time = "date"
features = ["page", "weekday", "visits"]
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

BACK, AHEAD = 35, 7


class DirectMLP(nn.Module):
    def __init__(self, n_pages):
        super().__init__()
        self.page = nn.Embedding(n_pages, 6)
        self.net = nn.Sequential(nn.Linear(BACK + 7 + 6, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 64), nn.ReLU())
        self.out = nn.Linear(64, AHEAD)

    def forward(self, history, weekday, page):
        h = torch.cat([history, weekday, self.page(page)], dim=1)
        return self.out(self.net(h))


class WebTraffic(Task):
    kind = "statistic"
    metrics = {"smape": "minimize"}

    def fit(self, train):
        self.fitted = {"pages": sorted(train.select("page").unique().collect()["page"].to_list())}

    def encode(self, rows):
        logs = np.log1p(np.array(rows["visits"].to_list(), dtype=float))
        level = np.median(logs, axis=1, keepdims=True)
        index = {p: i + 1 for i, p in enumerate(self.fitted["pages"])}
        batch = {
            "history": torch.tensor(logs - level, dtype=torch.float32),
            "weekday": nn.functional.one_hot(torch.tensor(rows["weekday"].to_list()), 7).float(),
            "page": torch.tensor([index.get(p, 0) for p in rows["page"]]),
        }
        if "next_week" in rows.columns:
            ahead = np.log1p(np.array(rows["next_week"].to_list(), dtype=float))
            batch[LABEL] = torch.tensor(ahead - level, dtype=torch.float32)
        return batch

    def build_model(self):
        return DirectMLP(len(self.fitted["pages"]) + 1)

    def losses(self, output, batch):
        return (output - batch[LABEL]).abs().mean(dim=1)

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        ratio = torch.exp((output - batch[LABEL]).abs())
        return (2 * (ratio - 1) / (ratio + 1)).mean(1)

    def score(self, predictions, labels):
        return {"smape": float(np.average(predictions.ravel(), weights=labels))}
