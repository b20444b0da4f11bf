"""Which team solves a ticket: all categories share one bag of embeddings, whatever characters they hold.

data: help_desk

[data]
label = "team"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 0.01 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CATEGORIES = ("product", "channel", "spoken")


class Router(nn.Module):
    def __init__(self, words, teams):
        super().__init__()
        self.bag = nn.EmbeddingBag(words + 1, 12, mode="sum", padding_idx=0)
        self.duration = nn.Sequential(nn.Linear(1, 12), nn.Tanh())
        self.mix = nn.Bilinear(12, 12, 16)
        self.out = nn.Linear(16 + 12, teams)

    def forward(self, tokens, minutes):
        bag, duration = self.bag(tokens), self.duration(minutes.unsqueeze(1))
        return self.out(torch.cat([torch.relu(self.mix(bag, duration)), bag], 1))


class TicketRouting(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "log_loss")

    def fit(self, train):
        df = train.select(*CATEGORIES, "team").collect()
        words = sorted({f"{c}={v}" for c in CATEGORIES for v in df[c].drop_nulls().unique()})
        self.fitted = {"words": words, "teams": df["team"].unique().sort().to_list()}

    def encode(self, rows):
        at = {word: i + 1 for i, word in enumerate(self.fitted["words"])}
        tokens = [[at.get(f"{c}={row[c]}", 0) for c in CATEGORIES] for row in rows.select(CATEGORIES).to_dicts()]
        batch = {
            "tokens": torch.tensor(tokens, dtype=torch.int64).reshape(-1, len(CATEGORIES)),
            "minutes": torch.tensor([math.log(m) - 2.5 for m in rows["minutes"]], dtype=torch.float32),
        }
        if "team" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["teams"].index(t) for t in rows["team"]])
        return batch

    def build_model(self):
        return Router(len(self.fitted["words"]), len(self.fitted["teams"]))

    def losses(self, output, batch):
        return -output.log_softmax(1).gather(1, batch[LABEL][:, None])[:, 0]
